"""`flashinfer-perf prove`: whether identical code is called the same here, and extra work is found."""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_flashinfer_perf.cli import judging, processes
from pytest_flashinfer_perf.cli.processes import Environment, say
from pytest_flashinfer_perf.config import planting
from pytest_flashinfer_perf.config.usage import positive
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.gate import calibration, proof_shown, runs
from pytest_flashinfer_perf.gate.proof import Proof, prove
from pytest_flashinfer_perf.gate.thresholds import Thresholds, share
from pytest_flashinfer_perf.runs.formatting import counted
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import Run, RunError

EXAMPLE = "example: flashinfer-perf prove --share 3% -- tests/attention -k 'decode and fa3'"
PLAIN, PLANTED = "plain", "planted"
BEYOND = 1.5  # what is planted where no share is asked for, in thresholds
WRITERS = {"markdown": proof_shown.markdown, "json": proof_shown.document}

Share = Callable[[Row], float]


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    options = parser().parse_args(own)
    return _reported(_judged_again(options, for_pytest) if options.stored else _measured(options, for_pytest), options)


def _measured(options: argparse.Namespace, for_pytest: Sequence[str]) -> Proof:
    calibration.verify_enough(options.processes)
    asked = None if options.share is None else share(options.share, "--share")
    where, gpu = processes.environment("python", options.python), processes.gpu(for_pytest)
    rules = judging.rules(options, [gpu], paired=False)
    wanted = _wanted(asked, rules.thresholds)
    session = Session(where, for_pytest, processes.folder(options.output, "prove"), gpu, wanted)
    with processes.alone_on(gpu):
        session.measure(options.processes)
    proof = prove(session.runs[PLAIN], session.runs[PLANTED], rules)
    for suffix, text in ((".md", proof_shown.markdown), (".json", proof_shown.document)):
        write_whole(session.output / f"proof{suffix}", text(proof))
    return proof


def _judged_again(options: argparse.Namespace, for_pytest: Sequence[str]) -> Proof:
    if for_pytest or options.share or options.output:
        raise RunError("--from judges what was measured: leave out --share, --output and what is behind --")
    plain, planted = (_stored(options.stored, side) for side in (PLAIN, PLANTED))
    gpus = {gpu for run in (*plain, *planted) for gpu in run.gpus}
    return prove(plain, planted, judging.rules(options, gpus, paired=False))


def _stored(folder: Path, side: str) -> list[Run]:
    files = sorted(folder.glob(f"{side}-*.json"))
    if len(files) < calibration.FEWEST:
        raise RunError(f"--from={folder}: {len(files)} files {side}-*.json, at least {calibration.FEWEST} are needed")
    return runs.read(files)


def _wanted(asked: float | None, thresholds: Thresholds) -> Share:
    """The share of a case's time that is planted: what was asked for, or somewhat more than its threshold."""
    return lambda row: asked or BEYOND * math.expm1(thresholds.of(row).in_log(row.median))


@dataclass
class Session:
    """The processes so far. Every second time the planted one is first, so that a drift favours neither."""

    where: Environment
    arguments: Sequence[str]
    output: Path
    gpu: str | None
    share: Share
    runs: dict[str, list[Run]] = field(default_factory=lambda: {PLAIN: [], PLANTED: []})

    def measure(self, times: int) -> None:
        for nth in range(times):
            for side in (PLAIN, PLANTED) if nth % 2 == 0 else (PLANTED, PLAIN):
                self.runs[side].append(self._measured(side, f"{side}-{nth + 1:02}"))

    def _measured(self, side: str, name: str) -> Run:
        start = time.monotonic()
        planted = [f"--perf-plant={self.plants}"] if side == PLANTED else []
        done = processes.measured(self.where, [*self.arguments, *planted], self.output / name)
        if done.failed:
            raise RunError(f"{name}: tests failed, nothing is proved: see {done.log}")
        processes.verify(done.run, self.gpu)
        say(f"{name}: {counted(len(done.run.rows), 'case')} in {time.monotonic() - start:.1f} s")
        return done.run

    @functools.cached_property
    def plants(self) -> Path:
        """Shares of what the first process took."""
        path = (self.output / "plants.json").resolve()
        rows = [row for row in self.runs[PLAIN][0].by_case.values() if 0 < row.median < math.inf]
        planting.write(path, {row.fullname: self.share(row) * row.median for row in rows})
        return path


def _reported(proof: Proof, options: argparse.Namespace) -> int:
    sys.stdout.writelines(f"{line}\n" for line in proof_shown.lines(proof))
    for name, text in WRITERS.items():
        if getattr(options, name):
            write_whole(getattr(options, name), text(proof))
    return proof.exit_code


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flashinfer-perf prove",
        usage="flashinfer-perf prove [OPTIONS] -- PYTEST_ARGS",
        description="Measure the same cases in several processes, as they are and with extra work behind each timed "
        "call, and judge every process against every other one: how often identical code is called SLOWER, and how "
        "often the extra work is found. Exit code 0: as rarely and as often as the gate promises, 1: not, 2: could not "
        "be measured.",
        epilog=EXAMPLE,
    )
    made.add_argument("--share", metavar="N%", help="extra work, of a case's own time (1.5 times its threshold)")
    made.add_argument("--processes", type=positive, default=8, metavar="N", help="as they are, and as many planted (8)")
    made.add_argument("--python", default=sys.executable, metavar="CMD", help="as ab takes it (this one)")
    made.add_argument("--output", type=Path, metavar="DIR", help="a new folder for results and logs (prove-DATE-TIME)")
    made.add_argument("--from", dest="stored", type=Path, metavar="DIR", help="judge what is stored there again")
    for name in WRITERS:
        made.add_argument(f"--{name}", metavar="FILE", type=Path, help=f"write what is printed as {name}")
    judging.add_settings(made)
    made.set_defaults(perf_gate_allow="", perf_gate_strict=False)
    return made
