"""`flashinfer-perf record`: what a program calls of FlashInfer, as a file that can be measured."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_flashinfer_perf.cli.commands import parser_of
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import verify_outputs
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.printing import say, show
from pytest_flashinfer_perf.rows.formatting import counted, duration
from pytest_flashinfer_perf.traffic import dumps, hooks, merging, recording
from pytest_flashinfer_perf.traffic.recording import RecordedCall, Recording, WrapperState

USAGE = "-o FILE [--time] -- COMMAND | -o FILE --from FOLDER | --show FILE"
EXAMPLE = "example: flashinfer-perf record -o traffic.jsonl -- python -m my_server --model m"
DESCRIPTION = """Count what a command and the processes that it starts call of FlashInfer: shapes, types and flags, how
often, and the lengths and routing behind them. No other value of a tensor is read. Exits with the command's code."""
HOOKS = Path(hooks.__file__).with_name("inside")


class RecordError(FlashinferPerfError):
    """Nothing was recorded; the message says why."""


def main(arguments: Sequence[str]) -> int:
    own, command = processes.split(arguments)
    known = parser()
    args = known.parse_args(own)
    if args.show is not None:
        show(shown(recording.read(args.show)))
        return 0
    if args.output is None or bool(command) == bool(args.folder):
        known.error("give -o FILE, and either a command behind -- or --from FOLDER")
    verify_outputs({"--output": args.output})
    if args.folder:
        return written(args.output, *dumps.of_folder(args.folder))
    pieces = args.output.with_name(f"{args.output.name}.pieces").resolve()
    if pieces.exists():
        raise RecordError(f"{pieces} is there, of a run that was killed: read it by --from, or remove it")
    pieces.mkdir()
    code = run(command, environment(pieces, timed=args.time))
    if not any(pieces.iterdir()):
        pieces.rmdir()
        raise RecordError(f"the command (exit code {code}) has called no decorated function of FlashInfer: {EXAMPLE}")
    written(args.output, *merging.of_folder(pieces))
    shutil.rmtree(pieces)
    return code


def parser() -> argparse.ArgumentParser:
    made = parser_of("record", DESCRIPTION, EXAMPLE, usage=USAGE)
    made.add_argument("-o", "--output", type=Path, metavar="FILE", help="The recording to write, as JSON lines.")
    made.add_argument("--time", action="store_true", help="Add the GPU time of each kernel, which CUPTI tells.")
    dump = "Read a dump of FLASHINFER_LOGLEVEL=10 or FLASHINFER_TRACE_DUMP, or the pieces of a command that was killed."
    made.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help=dump)
    made.add_argument("--show", type=Path, metavar="FILE", help="Print a recording.")
    return made


def environment(pieces: Path, *, timed: bool) -> Mapping[str, str]:
    """The command's, with the recorder in front of its Python path."""
    path = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, hooks.FOLDER: str(pieces), **({hooks.TIMED: "1"} if timed else {})}


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code of the command, which gets the signals that this process is sent."""
    try:
        child = subprocess.Popen(command, env=environ)  # noqa: S603 - what the user asked for
    except OSError as error:
        Path(environ[hooks.FOLDER]).rmdir()
        raise RecordError(f"{command[0]} cannot be started: {error}") from error
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command too
    try:
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return code if code >= 0 else 128 - code


def written(output: Path, made: Recording, faults: Sequence[str]) -> int:
    recording.write(output, made)
    head = made.head
    say(f"{counted(head.calls, 'call')} in {output}, {len(made.calls)} distinct, of processes: {head.processes}")
    if head.dropped:
        say(f"{counted(head.dropped, 'call')} not recorded: a bound was reached, or the recorder failed")
    for fault in faults:
        say(f"the recorder failed: {fault}")
    return 0


def shown(made: Recording) -> Iterator[str]:
    """A recording for people: the most frequent calls first."""
    head = made.head
    where = ", ".join(filter(None, (head.flashinfer and f"FlashInfer {head.flashinfer}", *head.devices)))
    yield f"{counted(head.calls, 'call')} in {duration(head.seconds)}, {where or 'of an unknown version'}"
    if head.dropped:
        yield f"{counted(head.dropped, 'call')} not recorded"
    for call in sorted(made.calls, key=lambda one: -one.count):
        replayed = f", {call.replayed} by graphs" if call.replayed else ""
        yield f"{call.count / max(1, head.calls):7.2%}  {call.api}: {counted(call.count, 'call')}{replayed}"
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
        yield f"{name}: {min(numbers)} to {max(numbers)}, in {counted(len(call.samples), 'sample')}"


def as_text(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(as_text, value))}]"
    if not isinstance(value, dict):
        return str(value)
    if "tensor" not in value:
        return str(next(iter(value.values())))
    sizes = "x".join("*" if size is None else str(size) for size in value["tensor"])
    return f"{value['dtype']}[{sizes}]" + ("" if "strides" not in value else " strided")
