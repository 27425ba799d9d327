"""The points between two ends, commits or FlashInfer's releases, and which of them to measure next."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from pytest_flashinfer_perf.api import requirements, run_file


class PointVerdict(IntEnum):
    """Did the case change? The values are those of `git bisect run`, and in result.json."""

    UNCHANGED = 0
    CHANGED = 1
    SKIP = 125


@dataclass(frozen=True)
class Next:
    """The next point to measure, or None and the remaining suspects, the last of which is known to be changed."""

    point: str | None
    suspects: tuple[str, ...] = ()


def git(folder: Path, *words: str) -> str:
    """Run git and return its output; raises RunError."""
    done = _git(folder, *words)
    if done.returncode:
        raise run_file.RunError(f"git {' '.join(words)} in {folder}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def commit(repo: Path, option: str, rev: str) -> str:
    """The hash of the revision that the option names."""
    answer = _git(repo, "rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}")
    if answer.returncode:
        raise run_file.RunError(
            f"--{option}={rev}: {repo} has no such commit: fetch it, in GitHub's checkout by fetch-depth: 0"
        )
    return answer.stdout.strip()


def between(repo: Path, good: str, bad: str) -> tuple[str, str]:
    """The hashes of both revisions; raises RunError unless the first is an ancestor of the second."""
    first, last = commit(repo, "good", good), commit(repo, "bad", bad)
    if first == last:
        raise run_file.RunError(f"--good={good} and --bad={bad} are one commit, {first}")
    if _git(repo, "merge-base", "--is-ancestor", first, last).returncode:
        base = _git(repo, "merge-base", first, last).stdout.strip() or "none"
        raise run_file.RunError(
            f"--good={good} is no ancestor of --bad={bad}: name one that is, their merge base is {base}"
        )
    return first, last


@dataclass(frozen=True)
class GitHistory:
    """The commits that `bad` has and `good` has not."""

    repo: Path
    good: str
    bad: str

    def __len__(self) -> int:
        return int(git(self.repo, "rev-list", "--count", f"{self.good}..{self.bad}"))

    def next(self, answers: Mapping[str, PointVerdict]) -> Next:
        """The commit that halves the suspects, or one further away from the middle the more of them were skipped."""
        changed = [self.bad, *(point for point, answer in answers.items() if answer is PointVerdict.CHANGED)][-1]
        unchanged = [self.good, *(point for point, answer in answers.items() if answer is PointVerdict.UNCHANGED)]
        listed = git(self.repo, "rev-list", "--bisect-all", changed, "--not", *unchanged).splitlines()
        suspects = [line.split()[0] for line in listed]
        skipped = sum(answers.get(one) is PointVerdict.SKIP for one in suspects)
        open_ones = [one for one in suspects if one != changed and one not in answers]
        if open_ones:
            return Next(open_ones[min(skipped**2, len(open_ones) - 1)])
        return Next(None, (*(one for one in suspects if one != changed), changed))

    def parents(self, suspects: Sequence[str]) -> list[str]:
        """The parents inside the searched range; a merge may also have parents that are older than the good end."""
        listed = git(self.repo, "rev-list", "--no-walk", "--parents", *suspects).split()
        inside = {self.good, *git(self.repo, "rev-list", f"{self.good}..{self.bad}").split()}
        return [one for one in dict.fromkeys(listed) if one in inside and one not in suspects] or [self.good]

    def title(self, point: str) -> str:
        return git(self.repo, "log", "-1", "--format=%h %s", point)

    def origin(self, point: str) -> str:
        return git(self.repo, "log", "-1", "--format=%an, %ad", "--date=short", point)


# FlashInfer's releases between two versions, from a package index or a folder of wheels.

AVAILABLE = re.compile(r"^Available versions: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Releases:
    """The releases to search in, oldest first, with both ends."""

    versions: tuple[str, ...]

    @property
    def good(self) -> str:
        return self.versions[0]

    @property
    def bad(self) -> str:
        return self.versions[-1]

    def __len__(self) -> int:
        return len(self.versions) - 1

    def next(self, answers: Mapping[str, PointVerdict]) -> Next:
        """The middle of the releases between the last unchanged and the first changed one."""
        changed = self._first({self.bad, *(at for at, answer in answers.items() if answer is PointVerdict.CHANGED)})
        unchanged = [at for at in range(changed) if answers.get(self.versions[at]) is PointVerdict.UNCHANGED]
        last = max(unchanged, default=0)
        open_ones = [at for at in range(last + 1, changed) if self.versions[at] not in answers]
        if not open_ones:
            return Next(None, self.versions[last + 1 : changed + 1])
        return Next(self.versions[min(open_ones, key=lambda at: abs(2 * at - last - changed))])

    def _first(self, points: Iterable[str]) -> int:
        return min(self.versions.index(point) for point in points)

    def parents(self, suspects: Sequence[str]) -> list[str]:
        return [self.versions[self._first(suspects) - 1]]

    def title(self, point: str) -> str:
        return point

    def origin(self, _point: str) -> str:
        return f"release of {requirements.PROJECT}"


# The points between a good and a bad end, and which one to measure next.
History = GitHistory | Releases


def releases_between(good: str, bad: str, available: Iterable[Version], where: str) -> Releases:
    """The releases from one version to another. Pre-releases are left out unless an end is one."""
    first, last = _version(good), _version(bad)
    if first >= last:
        raise run_file.RunError(f"--releases {good} {bad}: the older release comes first, and they are two")
    versions = set(available)
    for end in (first, last):
        if end not in versions:
            listed = ", ".join(map(str, sorted(versions))) or "none"
            raise run_file.RunError(f"--releases: {requirements.PROJECT} {end} is not in {where}, which has {listed}")
    previews = first.is_prerelease or last.is_prerelease
    chosen = (one for one in versions if first <= one <= last and (previews or not one.is_prerelease))
    return Releases(tuple(str(one) for one in sorted(chosen)))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise run_file.RunError(f"--releases: {text!r} is no version, as in 0.7.1 or 0.7.2.post1") from error


def wheels(folder: Path) -> dict[Version, Path]:
    """FlashInfer's wheels in a folder, by version."""
    if not folder.is_dir():
        raise run_file.RunError(f"--wheels={folder}: there is no such folder")
    paths = {}
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise run_file.RunError(f"--wheels={folder}: {path.name}: {error}") from error
        if name == requirements.PROJECT:
            paths[version] = path
    return paths


def of_index(python: Sequence[str]) -> set[Version]:
    """The versions that `pip index` lists, with pip's own configuration."""
    words = [*python, "-m", "pip", "index", "versions", "--pre", requirements.PROJECT]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    listed = AVAILABLE.search(done.stdout)
    if listed is None:
        last = done.stderr.strip().rpartition("\n")[2]
        raise run_file.RunError(
            f"pip cannot list the releases of {requirements.PROJECT}: {last}; or name a folder of wheels, --wheels=DIR"
        )
    return {Version(text.strip()) for text in listed[1].split(",")}
