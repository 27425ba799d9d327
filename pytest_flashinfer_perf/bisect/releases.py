"""FlashInfer's releases between two versions, from a package index or a folder of wheels."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from pytest_flashinfer_perf.bisect.question import Answer
from pytest_flashinfer_perf.bisect.search import Next
from pytest_flashinfer_perf.machine.requirements import PROJECT
from pytest_flashinfer_perf.runs.run_file import RunError

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

    def next(self, answers: Mapping[str, Answer]) -> Next:
        """The middle of the releases between the last unchanged and the first changed one."""
        changed = self._first({self.bad, *_having(answers, Answer.CHANGED)})
        unchanged = [at for at in range(changed) if answers.get(self.versions[at]) is Answer.UNCHANGED]
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
        return f"release of {PROJECT}"


def _having(answers: Mapping[str, Answer], wanted: Answer) -> list[str]:
    return [point for point, answer in answers.items() if answer is wanted]


def between(good: str, bad: str, available: Iterable[Version], where: str) -> Releases:
    """The releases from one version to another. Pre-releases are left out unless an end is one."""
    first, last = _version(good), _version(bad)
    if first >= last:
        raise RunError(f"--releases {good} {bad}: the older release comes first, and they are two")
    known = set(available)
    for end in (first, last):
        if end not in known:
            listed = ", ".join(map(str, sorted(known))) or "none"
            raise RunError(f"--releases: {PROJECT} {end} is not in {where}, which has {listed}")
    previews = first.is_prerelease or last.is_prerelease
    chosen = (one for one in known if first <= one <= last and (previews or not one.is_prerelease))
    return Releases(tuple(str(one) for one in sorted(chosen)))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise RunError(f"--releases: {text!r} is no version, as in 0.7.1 or 0.7.2.post1") from error


def wheels(folder: Path) -> dict[Version, Path]:
    """FlashInfer's wheels in a folder, by version."""
    if not folder.is_dir():
        raise RunError(f"--wheels={folder}: there is no such folder")
    found = {}
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise RunError(f"--wheels={folder}: {path.name}: {error}") from error
        if name == PROJECT:
            found[version] = path
    return found


def of_index(python: Sequence[str]) -> set[Version]:
    """The versions that `pip index` lists, with pip's own configuration."""
    words = [*python, "-m", "pip", "index", "versions", "--pre", PROJECT]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    listed = AVAILABLE.search(done.stdout)
    if listed is None:
        last = done.stderr.strip().rpartition("\n")[2]
        raise RunError(f"pip cannot list the releases of {PROJECT}: {last}; or name a folder of wheels, --wheels=DIR")
    return {Version(text.strip()) for text in listed[1].split(",")}
