"""`bisect --dry-run`: estimate the steps, the disk space and the minutes of a search."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from pytest_flashinfer_perf.bisect.git_history import git
from pytest_flashinfer_perf.gate.plan import Plan
from pytest_flashinfer_perf.machine.requirements import PROJECT
from pytest_flashinfer_perf.runs.formatting import counted
from pytest_flashinfer_perf.runs.run_file import RunError

COLLECTED = re.compile(r"(\d+)(?:/\d+)? tests? collected")
START_S, CASE_S = 6.0, 1.0  # of a process, and of each case in it: on H200s three cases took 6 to 8 s, fourteen 12 s
GIB = 2**30


def steps(points: int) -> int:
    return math.ceil(math.log2(points)) if points > 1 else 0


def lines(points: int, cases: int, disk: int | None, plan: Plan) -> Iterator[str]:
    """`cases` are all that are measured at both ends; at least one of them is measured in each step."""
    yield f"points: {points}, so about {counted(steps(points), 'step')} after the ends, and a verification"
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
        raise RunError(f"{shlex.join(words)} selects no test: {last}")
    return int(found[1])


def disk_of_trees(repo: Path, ends: Iterable[str]) -> int:
    """The size of both worktrees, from the sizes of the files at the two ends."""
    return sum(_tree(repo, rev) for rev in ends)


def _tree(repo: Path, rev: str) -> int:
    listed = git(repo, "ls-tree", "-r", "--long", rev).splitlines()
    return sum(int(size) for line in listed if (size := line.split(maxsplit=4)[3]) != "-")


def disk_of_wheels(wheels: Iterable[Path]) -> int:
    total = 0
    for path in wheels:
        with zipfile.ZipFile(path) as archive:
            total += sum(one.file_size for one in archive.infolist())
    return total


def disk_of_releases(number: int) -> int | None:
    """Assumes that each is as large as the installed one; None if none is installed."""
    try:
        files = metadata.files(PROJECT) or []
    except metadata.PackageNotFoundError:
        return None
    return number * sum(file.size or 0 for file in files)
