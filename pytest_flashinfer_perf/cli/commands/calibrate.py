"""`flashinfer-perf calibrate`: the same code in several processes, so that the gate knows this machine's noise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.cli import processes
from pytest_flashinfer_perf.cli.processes import Done, say
from pytest_flashinfer_perf.files import verify_writable
from pytest_flashinfer_perf.gate import calibration
from pytest_flashinfer_perf.gate.calibration import DOMAINS, CalibrationError
from pytest_flashinfer_perf.runs.formatting import WIDTH, counted, duration

EXAMPLE = "example: flashinfer-perf calibrate -- tests/attention -k 'decode and fa2'"
HEADINGS = f"{'':<38}{'median':>10}{'sd':>8}{'floor':>8}{'1 run':>8}{'5 pairs':>8}"


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    said = parser().parse_args(own)
    calibration.verify_enough(said.processes)
    where = processes.environment("python", said.python)
    output = processes.folder(said.output, "calibrate")
    gpu = processes.gpu(for_pytest)
    verify_writable(said.write or calibration.kept(gpu))
    done = []
    with processes.alone_on(gpu):
        for nth in range(said.processes):
            done.append(processes.measured(where, for_pytest, output / f"process-{nth + 1:02}"))
            processes.verify(done[-1].run, gpu)
            say(f"process {nth + 1} of {said.processes}: {counted(len(done[-1].run.rows), 'case')}")
    _refuse_failures(done)
    calibrated = calibration.of([one.run for one in done])
    path = said.write or calibration.kept(calibrated["gpu"])
    calibration.write(path, calibrated)
    sys.stdout.writelines(f"{line}\n" for line in (*lines(calibrated), f"wrote {path}"))
    return 0


def _refuse_failures(done: Sequence[Done]) -> None:
    failed = [str(one.log) for one in done if one.failed]
    if failed:
        raise CalibrationError(f"tests failed, nothing is kept: see {', '.join(failed)}")


def lines(calibrated: Mapping[str, Any]) -> Iterator[str]:
    """Per case and domain: what two processes differ by at most, and the slowdowns that are surely found."""
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
        description="Measure the same cases in several processes and keep what they vary by, for this GPU.",
        epilog=EXAMPLE,
    )
    made.add_argument("--processes", type=int, default=8, metavar="N", help="how many (8)")
    made.add_argument("--python", default=sys.executable, metavar="CMD", help="as ab takes it (this one)")
    made.add_argument("--output", type=Path, metavar="DIR", help="a new folder for results (calibrate-DATE-TIME)")
    made.add_argument("--write", type=Path, metavar="FILE", help="where it is kept (the user's cache, by GPU)")
    return made
