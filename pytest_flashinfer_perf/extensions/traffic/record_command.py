"""`flashinfer-perf record`: what a program calls of FlashInfer, as a file that can be measured."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import commands, file_io, formatting, printing, processes
from pytest_flashinfer_perf.extensions.traffic import launcher, merging, recording
from pytest_flashinfer_perf.extensions.traffic.launcher import RecordError
from pytest_flashinfer_perf.extensions.traffic.merging import Joined

USAGE = "-o FILE -- COMMAND | -o FILE --from FOLDER"
EXAMPLE = "example: flashinfer-perf record -o traffic.jsonl -- python -m my_server --model m"
DESCRIPTION = """Count what a command and the processes that it starts call of FlashInfer: shapes, types and flags, how
often, and the lengths and routing behind them. No other value of a tensor is read. Exits with the command's code."""
OF_PIECES = "`flashinfer-perf record -o FILE --from {}` reads all of it"
NOTHING = 2  # the exit code where nothing was recorded, unless the command has one of its own


def main(arguments: Sequence[str]) -> int:
    own, command = processes.split(arguments)
    command_parser = parser()
    args = command_parser.parse_args(own)
    if args.output is None or bool(command) == bool(args.folder):
        command_parser.error("give -o FILE, and either a command behind -- or --from FOLDER")
    file_io.verify_outputs({"--output": args.output})
    if args.folder:
        return 0 if written(args.output, merging.of_folder(args.folder), str(args.folder)) else NOTHING
    return recorded(args.output, command)


def recorded(output: Path, command: Sequence[str]) -> int:
    """Record the command, and keep its pieces where they hold more than the recording does, or will."""
    pieces = launcher.new_folder(output)
    try:
        code = launcher.run(command, launcher.environment(pieces))
    except RecordError:
        pieces.rmdir()
        raise
    pids = launcher.left(pieces)
    try:
        is_any = written(output, merging.of_folder(pieces), f"the command (exit code {code})")
    except OSError as error:
        printing.say(f"{output}: not written: {error}; {OF_PIECES.format(pieces)}")
        return code or NOTHING
    if pids:
        named = ", ".join(map(str, pids[:8]))
        printing.say(f"still recorded are the processes {named}: when they have ended, {OF_PIECES.format(pieces)}")
    else:
        shutil.rmtree(pieces)
    return code if is_any or pids else code or NOTHING


def parser() -> argparse.ArgumentParser:
    result = commands.parser_of("record", DESCRIPTION, EXAMPLE, usage=USAGE)
    result.add_argument("-o", "--output", type=Path, metavar="FILE", help="The recording to write, as JSON lines.")
    left = "Read the pieces that a command left, because it was killed or processes outlived it."
    result.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help=left)
    return result


def written(output: Path, joined: Joined, source: str) -> bool:
    """Write the recording and say what is not in it; False where nothing is left to write."""
    head = joined.recording.head
    calls, lost = (formatting.counted(number, "call") for number in (head.calls, head.dropped))
    if head.calls:
        recording.write(output, joined.recording)
        printing.say(f"{calls} in {output}, {len(joined.recording.calls)} distinct, of processes: {head.processes}")
    elif not head.dropped:
        printing.say(f"{source} has called no decorated function of FlashInfer: {EXAMPLE}")
    if head.dropped:
        printing.say(f"{lost} not recorded")
    for fault in joined.faults:
        printing.say(f"not all was recorded: {fault}")
    return bool(head.calls)
