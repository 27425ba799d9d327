"""The options and commands of this installation, whichever extensions it has, and lines that need no others."""

from pytest_flashinfer_perf import cli, loading
from pytest_flashinfer_perf.cli.commands import all_commands
from pytest_flashinfer_perf.plugin import options

OPTIONS = {one.name: one for table in (options.ALL, *loading.options(loading.manager()).values()) for one in table}
COMMANDS = {*cli.OF_PYTEST, *all_commands()}


def here(lines):
    """Those of the lines, or of a table by its lines, whose command and options are all there."""
    kept = [line for line in lines if all(map(_is_here, enumerate(line.split())))]
    return {line: lines[line] for line in kept} if isinstance(lines, dict) else kept


def _is_here(placed):
    at, word = placed
    if word.startswith("--perf-"):
        return word.partition("=")[0] in OPTIONS
    return at > 0 or word.startswith("-") or word in COMMANDS
