"""The commits between two revisions; `git bisect` chooses the next one to test."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_flashinfer_perf.bisect.question import GIT_WORDS, Answer
from pytest_flashinfer_perf.bisect.search import Next
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.runs.run_file import RunError

SUSPECT = re.compile(r"^# (?:possible )?first bad commit: \[(\w+)\]", re.MULTILINE)


def git(folder: Path, *words: str) -> str:
    """Run git and return its output; raises RunError."""
    done = _git(folder, *words)
    if done.returncode:
        raise RunError(f"git {' '.join(words)} in {folder}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def between(repo: Path, good: str, bad: str) -> tuple[str, str]:
    """The hashes of both revisions; raises RunError unless the first is an ancestor of the second."""
    first, last = (git(repo, "rev-parse", "--verify", f"{rev}^{{commit}}") for rev in (good, bad))
    if first == last:
        raise RunError(f"--good={good} and --bad={bad} are one commit, {first}")
    if _git(repo, "merge-base", "--is-ancestor", first, last).returncode:
        base = _git(repo, "merge-base", first, last).stdout.strip() or "none"
        raise RunError(f"--good={good} is no ancestor of --bad={bad}: name one that is, their merge base is {base}")
    return first, last


@dataclass
class GitHistory:
    """`tree` is a worktree in which `git bisect` is replayed with all answers so far, without checking out files."""

    repo: Path
    tree: Path
    good: str
    bad: str
    _next: dict[str, Next] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(git(self.repo, "rev-list", "--count", f"{self.good}..{self.bad}"))

    def next(self, answers: Mapping[str, Answer]) -> Next:
        log = self.log(answers, "--no-checkout")
        if log not in self._next:
            self._next[log] = self._replayed(log)
        return self._next[log]

    def log(self, answers: Mapping[str, Answer], *options: str) -> str:
        """The answers as a log for `git bisect replay`."""
        words = " ".join(f"'{word}'" for word in (*options, self.bad, self.good))
        steps = (f"git bisect {GIT_WORDS[answer]} {point}\n" for point, answer in answers.items())
        return f"git bisect start {words}\n{''.join(steps)}"

    def _replayed(self, log: str) -> Next:
        file = Path(git(self.tree, "rev-parse", "--absolute-git-dir")) / "flashinfer-perf-bisect.log"
        write_whole(file, log)
        done = _git(self.tree, "bisect", "replay", str(file))
        suspects = SUSPECT.findall(git(self.tree, "bisect", "log"))
        if suspects:
            changed = git(self.tree, "rev-parse", "refs/bisect/bad")
            return Next(None, (*(one for one in suspects if one != changed), changed))
        if done.returncode:
            raise RunError(f"git bisect replay in {self.tree}: {done.stderr.strip() or done.stdout.strip()}")
        return Next(git(self.tree, "rev-parse", "BISECT_HEAD"))

    def parents(self, suspects: Sequence[str]) -> list[str]:
        """The parents inside the searched range; a merge may also have parents that are older than the good end."""
        listed = git(self.repo, "rev-list", "--no-walk", "--parents", *suspects).split()
        inside = {self.good, *git(self.repo, "rev-list", f"{self.good}..{self.bad}").split()}
        return [one for one in dict.fromkeys(listed) if one in inside and one not in suspects] or [self.good]

    def title(self, point: str) -> str:
        return git(self.repo, "log", "-1", "--format=%h %s", point)

    def origin(self, point: str) -> str:
        return git(self.repo, "log", "-1", "--format=%an, %ad", "--date=short", point)
