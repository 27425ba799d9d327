"""What bisecting is worth on planted histories: python tests/acceptance/bisect_acceptance.py DIR

Twenty repositories of 64 commits each: a slow-down of 20 % at a random place, commits that do not build, changes that
revert themselves, and changes of opposite signs. Their times are replayed, with the noise that eight processes showed
on an H200.
"""

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gate_acceptance as simulated

from pytest_flashinfer_perf.extensions.bisect.bisection import (
    NoDifferenceError,
    PointError,
    Question,
    RevisionSearch,
    Side,
)
from pytest_flashinfer_perf.extensions.bisect.comparing import SIGNS, Times
from pytest_flashinfer_perf.extensions.bisect.histories import GitHistory, git
from pytest_flashinfer_perf.rows.run_file import Run

COMMITS = 64
BROKEN = 0.15  # of the commits, where some do not build
REAL = 0.01  # the least change of one commit that is one


@dataclass
class Planted:
    """`levels` are each commit's time as a factor of the first one's; `broken` ones do not build."""

    name: str
    levels: list[float]
    find: str = "slower"
    broken: set[int] = field(default_factory=set)

    @property
    def differs(self) -> bool:
        return SIGNS[self.find] * (self.levels[-1] / self.levels[0] - 1) > REAL

    def culprits(self) -> set[int]:
        """Where the time really changed in the direction that is asked for."""
        steps = (after / before - 1 for before, after in zip(self.levels, self.levels[1:], strict=False))
        return {at for at, step in enumerate(steps, start=1) if SIGNS[self.find] * step > REAL}

    def is_right(self, suspects: set[int]) -> bool:
        """One of those; or one among several, of which only the last builds."""
        return len(suspects & self.culprits()) == 1 and suspects - {max(suspects)} <= self.broken


def levels(*changes: tuple[int, float]) -> list[float]:
    """Each change is a place and a factor from there on."""
    made = [1.0] * COMMITS
    for place, factor in changes:
        made[place:] = [level * factor for level in made[place:]]
    return made


def twenty(seed: int = 25) -> list[Planted]:
    rng = random.Random(seed)
    places = [sorted(rng.sample(range(1, COMMITS), 3)) for _ in range(20)]
    made = [Planted(f"slower-{n}", levels((at, 1.2))) for n, (at, *_) in enumerate(places[:7])]
    made += [
        Planted(f"broken-{n}", levels((at, 1.2)), broken=_broken(rng)) for n, (_, at, _) in enumerate(places[7:12])
    ]
    for n, (first, second, third) in enumerate(places[12:15]):
        made.append(Planted(f"reverted-and-again-{n}", levels((first, 1.2), (second, 1 / 1.2), (third, 1.2))))
    for n, (first, second, _) in enumerate(places[15:17]):
        made.append(Planted(f"opposite-{n}", levels((first, 1.2), (second, 0.9)), broken=_broken(rng)))
    first, second, _ = places[17]
    made.append(Planted("opposite-faster", levels((first, 1.2), (second, 0.6)), find="faster"))
    made += [Planted(f"reverted-{n}", levels((a, 1.2), (b, 1 / 1.2))) for n, (a, b, _) in enumerate(places[18:])]
    return made


def _broken(rng: random.Random) -> set[int]:
    """Never an end: a search begins with both."""
    return {at for at in range(1, COMMITS - 1) if rng.random() < BROKEN}


def repository(folder: Path, files: Iterable[Mapping[str, str]]) -> list[str]:
    """Commits with these files each, by one process of git's; their ids, the oldest first."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    stream = "".join(_commit(number, of_commit) for number, of_commit in enumerate(files))
    words = ["git", "-C", str(folder), "fast-import", "--quiet"]
    subprocess.run(words, input=stream, text=True, check=True)
    git(folder, "checkout", "--quiet", "main")
    return git(folder, "rev-list", "--reverse", "main").split()


def _commit(number: int, files: Mapping[str, str]) -> str:
    subject = f"Commit {number}"
    made = [f"commit refs/heads/main\ncommitter A <a@example.org> {1_700_000_000 + number} +0000\n"]
    made.append(f"data {len(subject)}\n{subject}\n")
    made += [f"M 100644 inline {name}\ndata {len(text)}\n{text}\n" for name, text in files.items()]
    return "".join(made)


class Replayed:
    """What processes of these commits would measure."""

    def __init__(self, planted: Planted, ids: Sequence[str], kernel: simulated.Kernel, seed: int) -> None:
        self.planted, self.kernel, self.rng = planted, kernel, random.Random(seed)
        self.at = {point: number for number, point in enumerate(ids)}
        self.processes = 0

    def __call__(self, question: Question, side: Side, nth: int, cases: Iterable[str] | None) -> Run:  # noqa: ARG002
        number = self.at[question.point(side)]
        if number in self.planted.broken:
            raise PointError(question.point(side), "it does not build")
        self.processes += 1
        change = {self.kernel.name: self.planted.levels[number] - 1}
        return simulated.process([self.kernel], self.rng, change)


def searched(planted: Planted, folder: Path, kernel: simulated.Kernel, seed: int) -> tuple[set[int] | None, int]:
    """Numbers of the suspects, or none where it is refused; and how many processes that took."""
    ids = repository(folder, [{"level": str(level)} for level in planted.levels])
    instrument = Replayed(planted, ids, kernel, seed)
    history = GitHistory(folder, ids[0], ids[-1])
    compare = Times(instrument, simulated.rules(), lambda *_: None, SIGNS[planted.find])
    try:
        [trail] = RevisionSearch(history, compare).run()
    except NoDifferenceError:
        return None, instrument.processes
    found = trail.suspects if trail.verified else ()
    return {instrument.at[point] for point in found}, instrument.processes


def is_right(planted: Planted, suspects: set[int] | None) -> bool:
    return suspects is None if not planted.differs else planted.is_right(suspects or set())


def replayed(folder: Path, seed: int = 25) -> Iterator[tuple[Planted, simulated.Kernel, set[int] | None, int, bool]]:
    """Whether each of the twenty is right, with what was found."""
    for nth, planted in enumerate(twenty(seed)):
        kernel = simulated.H200[nth % len(simulated.H200)]
        suspects, processes = searched(planted, folder / planted.name, kernel, seed + nth)
        yield planted, kernel, suspects, processes, is_right(planted, suspects)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=25)
    options = parser.parse_args()
    start = time.monotonic()
    right = 0
    for planted, kernel, suspects, processes, good in replayed(options.folder, options.seed):
        right += good
        print(
            planted.name, kernel.name, planted.find, suspects, sorted(planted.culprits()), processes, good, flush=True
        )
    print(f"{right} of 20 right, in {time.monotonic() - start:.1f} s")
    return 0 if right == 20 else 1


if __name__ == "__main__":
    sys.exit(main())
