"""A session of pytest that a test starts, and what it ended with: exit code, outcomes, rows, lines.

done = session("--perf-backends=torch", test_own="def test_own(perf): perf.time(int)")
assert done.code == 0
assert done.outcomes == {"passed": 1}
assert done["test_own"]["extra_info"]["instrument"] == "wall"
done.says("*1 passed*")
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

QUICK = ("--perf-iters=3", "--perf-warmup=1", "--perf-device=cpu", "-p", "no:cacheprovider", "-W", "ignore")
WRITTEN = "run.json"


@dataclass(frozen=True)
class Session:
    """`says` and `complains` want these lines, with wildcards and in this order, of standard output and error."""

    result: pytest.RunResult
    folder: Path

    @property
    def code(self):
        return int(self.result.ret)

    @property
    def outcomes(self):
        """How many tests passed, failed, were skipped, deselected and so on; empty without a summary."""
        try:
            counted = self.result.parseoutcomes()
        except ValueError:
            return {}
        return {name: count for name, count in counted.items() if name != "warnings"}

    @property
    def out(self):
        return self.result.stdout.str()

    @property
    def err(self):
        return self.result.stderr.str()

    @property
    def document(self):
        """The JSON that was written."""
        return json.loads((self.folder / WRITTEN).read_text())

    @property
    def rows(self):
        """By the name of the test; none where nothing was written."""
        path = self.folder / WRITTEN
        has_rows = path.exists() and path.stat().st_size
        return {row["name"]: row for row in self.document["benchmarks"]} if has_rows else {}

    def __getitem__(self, name):
        return self.rows[name]

    def says(self, *lines):
        self.result.stdout.fnmatch_lines(lines)

    def complains(self, *lines):
        self.result.stderr.fnmatch_lines(lines)


def run(pytester, *options, process=False, quick=True, **files):
    """`files` are test files, or `conftest`, by their names; what was written before is removed.

    In this process, unless the session needs one of its own: it may end or hang there, or is to import all anew.
    """
    if files:
        pytester.makepyfile(**files)
    (pytester.path / WRITTEN).unlink(missing_ok=True)
    shutil.rmtree(pytester.path / "__pycache__", ignore_errors=True)  # of a file as long, written in the same second
    start = pytester.runpytest_subprocess if process else pytester.runpytest_inprocess
    return Session(start(*QUICK * quick, f"--benchmark-json={WRITTEN}", *options), pytester.path)
