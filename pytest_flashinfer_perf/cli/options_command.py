"""`flashinfer-perf options`: all options that this package and its extensions add to pytest, by what they are for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.cli.commands import HelpFormatter, parser_of
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.plugin.options import by_question
from pytest_flashinfer_perf.printing import show

EXAMPLE = "example: flashinfer-perf options baseline"


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("options", "Show pytest's options of this package, each with its help.", EXAMPLE)
    parser.add_argument("word", nargs="?", default="", help="Part of an option's name or help. Default: all options.")
    word: str = parser.parse_args(arguments).word
    lines = list(_lines(word))
    if not lines:
        raise FlashinferPerfError(f"no option has {word!r} in its name or its help; without a word all are listed")
    show(lines)
    return 0


def _lines(word: str) -> Iterator[str]:
    for question, declared in by_question(loading.manager()).items():
        parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False, formatter_class=HelpFormatter)
        group = parser.add_argument_group(question)
        for option in declared:
            if word.lower() in f"{option.name} {option.keywords['help']}".lower():
                option.add_by(group.add_argument)
        yield from parser.format_help().splitlines()
