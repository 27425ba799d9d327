"""`flashinfer-perf prove`: measure how often verdicts are right on this machine."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_flashinfer_perf.api import Row, Run, commands, file_io, printing, processes, run_file, share
from pytest_flashinfer_perf.api import options as core_options
from pytest_flashinfer_perf.extensions.compare import judging, sides
from pytest_flashinfer_perf.extensions.prove import planting
from pytest_flashinfer_perf.extensions.prove.proof import FEWEST, lines, prove

EXAMPLE = "example: flashinfer-perf prove --share 3% -- tests/attention -k 'decode and fa3'"
PLAIN, PLANTED = "plain", "planted"
BEYOND = 1.5  # default of --share, in thresholds


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    options = parser().parse_args(own)
    fixed_share = None if options.share is None else share(options.share, "--share")
    where, gpu = sides.environment("python", options.python), sides.gpu(for_pytest)
    rules = judging.rules(options, paired=False)
    sides.verify_complete(where, rules.allowed)

    def wanted(row: Row) -> float:
        """The extra work as a share of a case's time: the requested one, or 1.5 times the case's threshold."""
        return fixed_share or BEYOND * math.expm1(rules.thresholds.of(row).in_log(row.median))

    session = PlantedRuns(where, for_pytest, sides.folder(options.output, "prove"), gpu, wanted)
    with sides.alone_on(gpu):
        pair = sides.Pairs((PLAIN, PLANTED), session.measured)
        for nth in range(options.processes):
            pair(nth)
    proof = prove(session.runs[PLAIN], session.runs[PLANTED], rules)
    told = list(lines(proof))
    file_io.write_whole(session.output / "proof.txt", "\n".join(told) + "\n")
    printing.show(told)
    return proof.exit_code


@dataclass
class PlantedRuns:
    """The processes so far, without the extra work and with it."""

    where: processes.Environment
    arguments: Sequence[str]
    output: Path
    gpu: str | None
    share: Callable[[Row], float]
    runs: dict[str, list[Run]] = field(default_factory=lambda: {PLAIN: [], PLANTED: []})

    def measured(self, side: str, nth: int, _cases: frozenset[str] | None) -> Run:
        name = f"{side}-{nth + 1:02}"
        planted = [f"--perf-plant={self.plants}"] if side == PLANTED else []
        done = sides.measured(self.where, [*self.arguments, *planted], self.output / name, title=name)
        if done.failed:
            raise run_file.RunError(f"{name}: tests failed, so nothing can be concluded: see {done.log}")
        sides.verify(done.run, self.gpu)
        self.runs[side].append(done.run)
        return done.run

    @functools.cached_property
    def plants(self) -> Path:
        """The file with each test's extra work in seconds, from the times of the first process."""
        path = (self.output / "plants.json").resolve()
        rows = [row for row in self.runs[PLAIN][0].by_case.values() if 0 < row.median < math.inf]
        planting.write(path, {row.fullname: self.share(row) * row.median for row in rows})
        return path


def parser() -> argparse.ArgumentParser:
    result = commands.parser_of(
        "prove",
        "Measure the same cases in several processes, as they are and with a slowdown added to each timed "
        "call, and compare every process with every other one: how often is identical code called SLOWER, and how "
        "often is the slowdown found? Exits with 0 if at most 1 % of verdicts and 5 % of comparisons are false alarms "
        "and at least 95 % of slowdowns are found, with 1 if not, with 2 if that could not be measured.",
        EXAMPLE,
        usage="[OPTIONS] -- PYTEST_ARGS",
    )
    added = "Slowdown to add, in per cent of a case's time. Default: 1.5 times its threshold."
    result.add_argument("--share", metavar="N%", help=added)
    number = "Processes without the slowdown, and as many with it. Default: %(default)s."
    result.add_argument("--processes", type=core_options.whole(FEWEST), default=8, metavar="N", help=number)
    judging.PYTHON.add_by(result.add_argument)
    judging.add_output(result, "prove")
    judging.add_settings(result)
    core_options.ALLOW.add_by(result.add_argument)
    result.set_defaults(perf_gate_strict=False)
    return result
