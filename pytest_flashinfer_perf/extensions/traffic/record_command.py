"""`flashinfer-perf record`: what a program calls of FlashInfer, as a file that can be measured."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import commands, file_io, formatting, printing, processes
from pytest_flashinfer_perf.extensions.traffic import dumps, launcher, merging, recording
from pytest_flashinfer_perf.extensions.traffic.launcher import RecordError
from pytest_flashinfer_perf.extensions.traffic.merging import Joined
from pytest_flashinfer_perf.extensions.traffic.recording import RecordedCall, Recording, WrapperState

USAGE = "-o FILE [--time] -- COMMAND | -o FILE --from FOLDER | --show FILE"
EXAMPLE = "example: flashinfer-perf record -o traffic.jsonl -- python -m my_server --model m"
DESCRIPTION = """Count what a command and the processes that it starts call of FlashInfer: shapes, types and flags, how
often, and the lengths and routing behind them. No other value of a tensor is read. Exits with the command's code."""
OF_PIECES = "`flashinfer-perf record -o FILE --from {}` reads all of it"
NOTHING = 2  # the exit code where nothing was recorded, unless the command has one of its own


def main(arguments: Sequence[str]) -> int:
    own, command = processes.split(arguments)
    known = parser()
    args = known.parse_args(own)
    if args.show is not None:
        printing.show(shown(recording.read(args.show)))
        return 0
    if args.output is None or bool(command) == bool(args.folder):
        known.error("give -o FILE, and either a command behind -- or --from FOLDER")
    file_io.verify_outputs({"--output": args.output})
    if args.folder:
        return 0 if written(args.output, dumps.of_folder(args.folder)) else NOTHING
    return recorded(args.output, command, timed=args.time)


def recorded(output: Path, command: Sequence[str], *, timed: bool) -> int:
    """Record the command, and keep its pieces where they hold more than the recording does, or will."""
    with launcher.new_folder(output) as pieces:
        try:
            code = launcher.run(command, launcher.environment(pieces, timed=timed))
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
            printing.say(
                f"{pieces} is {launcher.still_writing(pids)}: when they have ended, {OF_PIECES.format(pieces)}"
            )
        else:
            shutil.rmtree(pieces)
        return code if is_any or pids else code or NOTHING


def parser() -> argparse.ArgumentParser:
    made = commands.parser_of("record", DESCRIPTION, EXAMPLE, usage=USAGE)
    made.add_argument("-o", "--output", type=Path, metavar="FILE", help="The recording to write, as JSON lines.")
    made.add_argument("--time", action="store_true", help="Add the GPU time of each kernel, which CUPTI tells.")
    dump = "Read a dump of FLASHINFER_LOGLEVEL=10 or FLASHINFER_TRACE_DUMP, or the pieces of a command that was killed."
    made.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help=dump)
    made.add_argument("--show", type=Path, metavar="FILE", help="Print a recording.")
    return made


def written(output: Path, made: Joined, source: str = "the folder") -> bool:
    """Write the recording and say what is not in it; False where nothing is left to write."""
    head = made.recording.head
    calls, lost, raised = (
        formatting.counted(number, "call") for number in (head.calls, head.dropped, sum(made.raised.values()))
    )
    if head.calls:
        recording.write(output, made.recording)
        printing.say(f"{calls} in {output}, {len(made.recording.calls)} distinct, of processes: {head.processes}")
    elif not head.dropped and not made.raised:
        printing.say(f"{source} has called no decorated function of FlashInfer: {EXAMPLE}")
    else:
        printing.say(f"{source} has left nothing to record")
    if made.raised:
        names = ", ".join(f"{name} ({count})" for name, count in made.raised.items())
        printing.say(f"{raised} raised, and are not in it: {names}"[:1000])
    if head.dropped:
        printing.say(f"{lost} not recorded")
    for fault in made.faults:
        printing.say(f"the recorder failed: {fault}")
    return bool(head.calls)


def shown(made: Recording) -> Iterator[str]:
    """A recording for people: the most frequent calls first."""
    head = made.head
    where = ", ".join(filter(None, (head.flashinfer and f"FlashInfer {head.flashinfer}", *head.devices)))
    yield (
        f"{formatting.counted(head.calls, 'call')} in {formatting.duration(head.seconds)}, "
        f"{where or 'of an unknown version'}"
    )
    if head.dropped:
        yield f"{formatting.counted(head.dropped, 'call')} not recorded"
    for call in sorted(made.calls, key=lambda one: -one.count):
        replayed = f", {call.replayed} by graphs" if call.replayed else ""
        yield f"{call.count / max(1, head.calls):7.2%}  {call.api}: {formatting.counted(call.count, 'call')}{replayed}"
        yield from (f"         {line}" for line in described(call))
    for kernel in made.kernels:
        yield f"{kernel.seconds * 1e3:12.3f} ms  {kernel.count:>9} x  {kernel.kernel}"


def described(call: RecordedCall) -> Iterator[str]:
    made = call.wrapper or WrapperState(init={}, plan={})
    for what, values in {"": call.arguments, "made with ": made.init, "planned with ": made.plan}.items():
        if values:
            yield what + ", ".join(f"{name}={as_text(value)}" for name, value in values.items())
    if call.backend:
        yield f"backend {call.backend}"
    held: dict[str, list[int]] = {}
    for name, of_one in (item for sample in call.samples for item in sample.items()):
        for summary, numbers in of_one.items():
            held.setdefault(f"{summary} of {name}", []).extend(numbers if isinstance(numbers, list) else [numbers])
    for name, numbers in filter(lambda one: one[1], held.items()):
        yield f"{name}: {min(numbers)} to {max(numbers)}, in {formatting.counted(len(call.samples), 'sample')}"


def as_text(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(as_text, value))}]"
    if not isinstance(value, dict):
        return str(value)
    if "tensor" not in value:
        return str(next(iter(value.values())))
    sizes = "x".join("*" if size is None else str(size) for size in value["tensor"])
    return f"{value['dtype']}[{sizes}]" + ("" if "strides" not in value else " strided")
