"""Measure a revision in a pytest process of its own, after compiling the kernels that the tests need."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_flashinfer_perf.bisect.places import Places
from pytest_flashinfer_perf.bisect.question import PointError, Question, Side
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.launch.processes import Environment, logged
from pytest_flashinfer_perf.printing import say
from pytest_flashinfer_perf.runs.run_file import Run, RunError

PREBUILD = "import sys; from pytest_flashinfer_perf import cli; sys.exit(cli.main(['prebuild', '--', *sys.argv[1:]]))"


@dataclass
class Processes:
    """Starts pytest with these arguments in a revision's worktree or with a release's packages."""

    places: Places
    arguments: Sequence[str]
    output: Path
    gpu: str | None
    allowed: frozenset[str] = frozenset()
    tests: dict[str, str] = field(default_factory=dict)
    compiled: set[tuple[str, str]] = field(default_factory=set)
    complete: set[str] = field(default_factory=set)

    def __call__(self, question: Question, side: Side, nth: int, cases: Iterable[str] | None) -> Run:
        point, folder = question.point(side), self.output / question.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.tests.update(question.tests)
        only = None if cases is None else [self.tests[case] for case in cases]
        for one in ("base", "head"):
            self._verify_complete(one, question.point(one))
        try:
            run = self._measured(side, point, folder / f"pair-{nth + 1:02}-{side}", only)
        except RunError as error:
            raise PointError(point, error) from error
        processes.verify(run, self.gpu)
        self.tests.update({row.case: row.fullname for row in run.rows})
        return run

    def _verify_complete(self, side: Side, point: str) -> None:
        """Before anything is measured: a release that lacks what it requires would be blamed for the other kernels."""
        if point in self.complete:
            return
        try:
            processes.verify_complete(replace(self.places.prepared(side, point), name=point), self.allowed)
        except RunError as error:
            raise PointError(point, error) from error
        self.complete.add(point)

    def _measured(self, side: Side, point: str, stem: Path, only: Sequence[str] | None) -> Run:
        where = self.places.prepared(side, point)
        self._compile(side, point, where, stem, only)
        return processes.measured(where, self.arguments, stem, only, f"  {stem.parent.name}, {stem.name}").run

    def _compile(self, side: Side, point: str, where: Environment, stem: Path, only: Sequence[str] | None) -> None:
        """Compile the modules of these tests. A failure is only logged: the run compiles again and reports it."""
        if self.gpu is None or (side, point) in self.compiled or not self.places.compiles(side):
            return
        self.compiled.add((side, point))
        start, log = time.monotonic(), stem.with_name(f"prebuild-{side}.log")
        try:
            logged([*_prebuild(where), *self._selected(stem, only)], log)
        except RunError as error:
            say(f"  prebuild: {str(error).rpartition(chr(10))[2]}: see {log}")
        else:
            say(f"  prebuild, {side}: {time.monotonic() - start:.1f} s")

    def _selected(self, stem: Path, only: Sequence[str] | None) -> list[str]:
        if only is None:
            return list(self.arguments)
        named = stem.with_suffix(".prebuild")
        write_whole(named, "".join(f"{test}\n" for test in only))
        return [*self.arguments, f"--perf-only={named}"]


def _prebuild(where: Environment) -> list[str]:
    """The environment's Python with `flashinfer-perf prebuild` instead of pytest."""
    words = where.program(PREBUILD)
    if words is None:
        raise RunError(f"{shlex.join(where.command)} names no Python that compiles before it measures")
    return list(words)
