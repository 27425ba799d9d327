"""`flashinfer-perf calibrate`: measure the same code in several processes, to learn this machine's noise."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.cli import process_options
from pytest_flashinfer_perf.files import verify_outputs
from pytest_flashinfer_perf.gate import calibration
from pytest_flashinfer_perf.gate.calibration import DOMAINS, CalibrationError
from pytest_flashinfer_perf.printing import say, show
from pytest_flashinfer_perf.running import processes
from pytest_flashinfer_perf.running.processes import Done
from pytest_flashinfer_perf.runs.formatting import WIDTH, counted, duration

EXAMPLE = "example: flashinfer-perf calibrate -- tests/attention -k 'decode and fa2'"
HEADINGS = f"{'':<38}{'median':>10}{'sd':>8}{'floor':>8}{'1 run':>8}{'5 pairs':>8}"


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = parser().parse_args(own)
    calibration.verify_enough(args.processes)
    where = processes.environment("python", args.python)
    output = processes.folder(args.output, "calibrate")
    gpu = processes.gpu(for_pytest)
    verify_outputs({"--write": args.write or calibration.kept(gpu)})
    done = []
    with processes.alone_on(gpu):
        for nth in range(args.processes):
            done.append(processes.measured(where, for_pytest, output / f"process-{nth + 1:02}"))
            processes.verify(done[-1].run, gpu)
            say(f"process {nth + 1} of {args.processes}: {counted(len(done[-1].run.rows), 'case')}")
    _refuse_failures(done)
    calibrated = calibration.of([one.run for one in done])
    path = args.write or calibration.kept(calibrated["gpu"])
    calibration.write(path, calibrated)
    show((*lines(calibrated), f"wrote {path}"))
    return 0


def _refuse_failures(done: Sequence[Done]) -> None:
    failed = [str(one.log) for one in done if one.failed]
    if failed:
        raise CalibrationError(f"tests failed, no calibration is written: see {', '.join(failed)}")


def lines(calibrated: Mapping[str, Any]) -> Iterator[str]:
    """For each case and domain the noise between processes, and the smallest slowdown that is sure to be found."""
    yield f"{calibrated['processes']} processes on {calibrated['gpu'] or calibrated['model']}, percent of the median"
    yield HEADINGS
    for case, known in calibrated["cases"].items():
        yield case[:WIDTH]
        for domain in DOMAINS:
            if domain in known:
                yield _line(domain, known)


def _line(domain: str, known: Mapping[str, Any]) -> str:
    names = ("sd", "floor", "detectable_in_one_run", "detectable_in_five_pairs")
    figures = "".join(f"{100 * known[domain][name]:>8.2f}" for name in names)
    return f"  {domain:<36}{duration(known['median_us'] * 1e-6):>10}{figures}"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flashinfer-perf calibrate",
        usage="flashinfer-perf calibrate [OPTIONS] -- PYTEST_ARGS",
        description="Measure the same cases in several processes, and write how far the processes differ on this GPU.",
        epilog=EXAMPLE,
    )
    made.add_argument(
        "--processes", type=int, default=8, metavar="N", help="Number of processes. Default: %(default)s."
    )
    process_options.PYTHON.add_by(made.add_argument)
    process_options.add_output(made, "calibrate")
    made.add_argument(
        "--write", type=Path, metavar="FILE", help="File to write. Default: one for this GPU in the user's cache."
    )
    return made
