"""The two kinds of history to search: the commits of a repository, or FlashInfer's releases."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from pytest_flashinfer_perf.bisect import estimate, git_history, places, releases
from pytest_flashinfer_perf.bisect.git_history import GitHistory, git
from pytest_flashinfer_perf.bisect.places import DoesNotImportError, Installed, Worktrees
from pytest_flashinfer_perf.bisect.releases import Releases
from pytest_flashinfer_perf.bisect.search import CaseSearch
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.printing import say
from pytest_flashinfer_perf.runs.run_file import RunError


@dataclass(frozen=True)
class Commits:
    history: GitHistory
    places: Worktrees

    @property
    def points(self) -> tuple[str, ...]:
        return self.history.good, self.history.bad

    @property
    def disk(self) -> int | None:
        return estimate.disk_of_trees(self.history.repo, self.points)

    def begin(self) -> Commits:
        self.places.tree("head", self.history.bad)
        return self

    def write_logs(self, trails: Iterable[CaseSearch], folder: Path) -> None:
        """Write a log for `git bisect replay` for each case."""
        for nth, trail in enumerate(trails, start=1):
            write_whole(folder / f"git-bisect-{nth}.log", f"# {trail.case}\n{self.history.log(trail.answers)}")


@dataclass(frozen=True)
class Packages:
    history: Releases
    places: Installed

    @property
    def points(self) -> tuple[str, ...]:
        return self.history.versions

    @property
    def disk(self) -> int | None:
        wheels = self.places.wheels
        if wheels:
            return estimate.disk_of_wheels(wheels[point] for point in self.points)
        return estimate.disk_of_releases(len(self.points))

    def begin(self) -> Packages:
        """Install the ends. An end that does not import gives way to the next release towards the other one."""
        versions = self.history.versions
        first = next(filter(self._imports, versions), None)
        last = next(filter(self._imports, reversed(versions)), None)
        if first is None or last is None or first == last:
            raise RunError("--releases: no two of these releases import here")
        return replace(self, history=Releases(versions[versions.index(first) : versions.index(last) + 1]))

    def _imports(self, point: str) -> bool:
        try:
            self.places.prepared("base", point)
        except DoesNotImportError as error:
            say(f"{error}: left out")
            return False
        return True

    def write_logs(self, trails: Iterable[CaseSearch], folder: Path) -> None:
        """Nothing to write: only git reads such logs."""


Subject = Commits | Packages


def subject(
    options: argparse.Namespace, arguments: Sequence[str], command: Sequence[str], output: Path, points: Sequence[str]
) -> Subject:
    """`points` are those of a resumed search, since branches may have moved since."""
    command = (str(Path(command[0]).absolute()) if "/" in command[0] else command[0], *command[1:])
    if options.repo is None:
        return _packages(options, command, output, points)
    return _commits(options, arguments, command, output, points)


def _commits(
    options: argparse.Namespace, arguments: Sequence[str], command: Sequence[str], output: Path, points: Sequence[str]
) -> Commits:
    repo = Path(git(options.repo, "rev-parse", "--show-toplevel"))
    good, bad = points or (options.good, options.bad)
    good, bad = git_history.between(repo, good, bad)
    here = Path.cwd().resolve()
    below = here.relative_to(repo) if here.is_relative_to(repo) else None
    _verify_outside(arguments, repo, below)
    trees = Worktrees(repo, output, command, below, options.build)
    return Commits(GitHistory(repo, output / "trees" / "head", good, bad), trees)


def _verify_outside(arguments: Sequence[str], repo: Path, below: Path | None) -> None:
    """Raise RunError for tests named in the user's own checkout, which would be the same at each commit."""
    for word in arguments:
        path = Path(word.partition("::")[0])
        if path.exists() and path.resolve().is_relative_to(repo) and (below is None or path.is_absolute()):
            raise RunError(f"{word} is in the checkout itself: start this in {repo}, and name it from there")


def _packages(options: argparse.Namespace, command: Sequence[str], output: Path, points: Sequence[str]) -> Packages:
    if tuple(command[-2:]) != processes.MODULE:
        raise RunError(f"--python={options.python}: with --releases it must be a virtual environment or a Python")
    python = command[:-2]
    found = {} if options.wheels is None else releases.wheels(options.wheels)
    history = Releases(tuple(points)) if points else _between(options, python, found)
    wheels = {str(version): path.resolve() for version, path in found.items()}
    return Packages(history, Installed(output, command, places.installer(python, options.wheels), wheels))


def _between(options: argparse.Namespace, python: Sequence[str], found: Mapping[Version, Path]) -> Releases:
    available = releases.of_index(python) if options.wheels is None else found
    good, bad = options.releases
    return releases.between(good, bad, available, str(options.wheels or "pip's index"))
