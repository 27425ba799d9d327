"""`flashinfer-perf`: the suite and its tools, from a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_flashinfer_perf import suite

QUIETLY = ("--import-mode=importlib", "--benchmark-quiet")
BENCH_EXAMPLE = "example: flashinfer-perf bench -k 'decode and fa3' --perf-suite=smoke --benchmark-json=run.json"


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["bench"] and words[1:2] not in (["-h"], ["--help"]):
        return bench(words[1:])
    _parser().parse_args(words)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("flashinfer-perf", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser(
        "bench",
        usage="flashinfer-perf bench [PYTEST_ARGS]",
        help="run the performance suite; every argument is pytest's",
        description="Run the performance suite, from a checkout or a wheel. Every argument is pytest's.",
        epilog=BENCH_EXAMPLE,
    )
    return parser


def bench(arguments: Sequence[str]) -> int:
    """The suite's own folder gives the same ids as a checkout; what a run writes stays where the user is."""
    here = Path.cwd()
    outputs = ["-o", f"cache_dir={here / '.pytest_cache'}", f"--benchmark-storage=file://{here / '.benchmarks'}"]
    tests = [str(path) for path in suite.paths()]
    return int(pytest.main([*tests, f"--rootdir={suite.root()}", *QUIETLY, *outputs, *arguments]))
