"""The two kinds of history to search: the commits of a repository, or FlashInfer's releases."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from pytest_flashinfer_perf.api import file_io, formatting, printing, processes, requirements, run_file
from pytest_flashinfer_perf.extensions.bisect import histories, places
from pytest_flashinfer_perf.extensions.bisect.histories import GitHistory, Releases, git
from pytest_flashinfer_perf.extensions.bisect.pairs import PairPlan
from pytest_flashinfer_perf.extensions.bisect.places import DoesNotImportError, Installed, Worktrees
from pytest_flashinfer_perf.extensions.bisect.search import CaseSearch


@dataclass(frozen=True)
class Commits:
    history: GitHistory
    places: Worktrees

    @property
    def points(self) -> tuple[str, ...]:
        return self.history.good, self.history.bad

    @property
    def disk(self) -> int | None:
        """The size of both worktrees, from the sizes of the files at the two ends."""
        repo = self.history.repo
        listed = (line for rev in self.points for line in git(repo, "ls-tree", "-r", "--long", rev).splitlines())
        return sum(int(size) for line in listed if (size := line.split(maxsplit=4)[3]) != "-")

    def begin(self) -> Commits:
        self.places.tree("head", self.history.bad)
        return self

    def write_logs(self, trails: Iterable[CaseSearch], folder: Path) -> None:
        """Write a log for `git bisect replay` for each case."""
        for nth, trail in enumerate(trails, start=1):
            file_io.write_whole(folder / f"git-bisect-{nth}.log", f"# {trail.case}\n{self.history.log(trail.answers)}")


@dataclass(frozen=True)
class Packages:
    history: Releases
    places: Installed

    @property
    def points(self) -> tuple[str, ...]:
        return self.history.versions

    @property
    def disk(self) -> int | None:
        wheels, total = self.places.wheels, 0
        if not wheels:
            return disk_of_releases(len(self.points))
        for point in self.points:
            with zipfile.ZipFile(wheels[point]) as archive:
                total += sum(one.file_size for one in archive.infolist())
        return total

    def begin(self) -> Packages:
        """Install the ends. An end that does not import gives way to the next release towards the other one."""
        versions = self.history.versions
        first = next(filter(self._imports, versions), None)
        last = next(filter(self._imports, reversed(versions)), None)
        if first is None or last is None or first == last:
            raise run_file.RunError("--releases: no two of these releases import here")
        return replace(self, history=Releases(versions[versions.index(first) : versions.index(last) + 1]))

    def _imports(self, point: str) -> bool:
        try:
            self.places.prepared("base", point)
        except DoesNotImportError as error:
            printing.say(f"{error}: left out")
            return False
        return True


Subject = Commits | Packages


def subject(
    options: argparse.Namespace, arguments: Sequence[str], command: Sequence[str], output: Path, points: Sequence[str]
) -> Subject:
    """`points` are those of a resumed search, since branches may have moved since."""
    if options.repo is None:
        return _packages(options, _from_anywhere(command), output, points)
    trees = worktrees(options.repo, arguments, command, output, options.build)
    good, bad = histories.between(trees.repo, *(points or (options.good, options.bad)))
    return Commits(GitHistory(trees.repo, output / "trees" / "head", good, bad), trees)


def _from_anywhere(command: Sequence[str]) -> tuple[str, ...]:
    return str(Path(command[0]).absolute()) if "/" in command[0] else command[0], *command[1:]


def worktrees(
    folder: Path, arguments: Sequence[str], command: Sequence[str], output: Path, build: str | None
) -> Worktrees:
    """Where commits of the folder's repository are measured by pytest with these arguments, in files of `output`."""
    repo = Path(git(folder, "rev-parse", "--show-toplevel"))
    here = Path.cwd().resolve()
    below = here.relative_to(repo) if here.is_relative_to(repo) else None
    for word in arguments:  # a test in the user's own checkout would be the same at each commit
        path = Path(word.partition("::")[0])
        if path.exists() and path.resolve().is_relative_to(repo) and (below is None or path.is_absolute()):
            raise run_file.RunError(f"{word} is in the checkout itself: start this in {repo}, and name it from there")
    return Worktrees(repo, output, _from_anywhere(command), below, build)


def _packages(options: argparse.Namespace, command: Sequence[str], output: Path, points: Sequence[str]) -> Packages:
    if tuple(command[-2:]) != processes.MODULE:
        raise run_file.RunError(
            f"--python={options.python}: with --releases it must be a virtual environment or a Python"
        )
    python = command[:-2]
    found = {} if options.wheels is None else histories.wheels(options.wheels)
    history = Releases(tuple(points))
    if not points:
        available = histories.of_index(python) if options.wheels is None else found
        where = str(options.wheels or "pip's index")
        good, bad = options.releases
        history = histories.releases_between(good, bad, available, where)
    wheels = {str(version): path.resolve() for version, path in found.items()}
    return Packages(history, Installed(output, command, places.installer(python, options.wheels), wheels))


# `bisect --dry-run`: estimate the steps, the disk space and the minutes of a search.

COLLECTED = re.compile(r"(\d+)(?:/\d+)? tests? collected")
START_S, CASE_S = 6.0, 1.0  # of a process, and of each case in it: on H200s three cases took 6 to 8 s, fourteen 12 s
GIB = 2**30


def steps(points: int) -> int:
    return math.ceil(math.log2(points)) if points > 1 else 0


def lines(points: int, cases: int, disk: int | None, plan: PairPlan) -> Iterator[str]:
    """`cases` are all that are measured at both ends; at least one of them is measured in each step."""
    yield f"points: {points}, so about {formatting.counted(steps(points), 'step')} after the ends, and a verification"
    pairs = " to ".join(dict.fromkeys((str(plan.fewest), str(plan.most))))
    yield f"cases: {cases}, in {pairs} pairs of processes for the ends; then those that changed"
    yield f"disk: {'not known' if disk is None else f'{disk / GIB:.2f} GiB'}, and the rows that are measured"
    least, most = _minutes(points, plan.fewest, cases, 1), _minutes(points, plan.most, cases, cases)
    pace = f"at {START_S:g} s a process and {CASE_S:g} s a case"
    yield f"minutes: {least:.0f} to {most:.0f} {pace}, and what it takes to build and to compile"


def _minutes(points: int, pairs: int, cases: int, of_steps: int) -> float:
    """All cases at both ends, then those that changed in each step and in one verification."""
    ends, step = (2 * pairs * (START_S + CASE_S * number) for number in (cases, of_steps))
    return (ends + (steps(points) + 1) * step) / 60


def collected(command: Sequence[str], arguments: Sequence[str]) -> int:
    """The number of tests that these arguments select in the current checkout. Writes no files."""
    words = ["env", "PYTHONDONTWRITEBYTECODE=1", *command, *arguments, "--collect-only", "--verbosity=0"]
    words += ["-p", "no:cacheprovider"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    found = COLLECTED.search(done.stdout)
    if found is None:
        last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        raise run_file.RunError(f"{shlex.join(words)} selects no test: {last}")
    return int(found[1])


def disk_of_releases(number: int) -> int | None:
    """Assumes that each is as large as the installed one; None if none is installed."""
    try:
        files = metadata.files(requirements.PROJECT) or []
    except metadata.PackageNotFoundError:
        return None
    return number * sum(file.size or 0 for file in files)
