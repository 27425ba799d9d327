"""A branch of any git remote to which files only grow: by git's plumbing, without a work tree, safe against others.

What is fetched and written lies in a folder of its own, which is gone afterwards: the repository in which a command
is started lends its configuration, with which a remote is reached, and stays as it is. A commit is pushed onto the
tip that was read, or refused by the remote; then all is done again, on the new tip.
"""

from __future__ import annotations

import functools
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pytest_flashinfer_perf.api import run_file

ATTEMPTS, LONGEST_WAIT_S = 20, 2.0
LOCKED = ("cannot lock ref", "failed to update ref", "incorrect old value", "unable to create")  # by another push
NAME = "flashinfer-perf"
AUTHOR = {f"GIT_{who}_{what}": NAME for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ALONE = ("core.hooksPath=/dev/null", "gc.auto=0", "maintenance.auto=false", "fetch.writeCommitGraph=false")


@dataclass(frozen=True)
class Branch:
    """The branch of a remote, which is a name or an address as git takes it."""

    remote: str
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    address: str = ""  # with the remote's name git would note commits in the repository that is to stay as it is

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.name}"

    def tip(self) -> str | None:
        """The commit at its end, whose files are here then; None if there is no such branch."""
        listed = self._listed()
        if listed is not None:
            self.git(
                "fetch", "--quiet", "--no-tags", "--no-prune", "--no-write-fetch-head", "--refmap=",
                "--", self.address, self.ref,
            )  # fmt: skip
        return listed

    def _listed(self) -> str | None:
        """What the remote says; it also lists what ends in this name, as refs/backup/refs/heads/NAME."""
        lines = self.git("ls-remote", "--", self.address, self.ref).splitlines()
        return next((commit for commit, _, ref in (line.partition("\t") for line in lines) if ref == self.ref), None)

    def files(self, tip: str | None) -> dict[str, str]:
        """What git's tree says of each entry at the root, by its name."""
        listed = self.git("ls-tree", "-z", tip).split("\0") if tip else []
        return {name: said for said, _, name in (entry.partition("\t") for entry in listed if entry)}

    def text(self, entry: str) -> str:
        return self.git("cat-file", "blob", entry.split()[2])

    def grow(self, more: Callable[[Callable[[str], str]], Mapping[str, str]], message: str) -> str | None:
        """Append to files, and return the new commit; None if there is nothing to append.

        `more` is given a function that returns what a file has, and returns what to append to which file. It is
        called again if another writer was faster.
        """
        for _ in range(ATTEMPTS):
            tip = self.tip()
            made = self._commit(tip, more, message)
            if made is None or self._push(made, tip):
                return made
            time.sleep(random.uniform(0, LONGEST_WAIT_S))  # noqa: S311 - so that two writers part
        raise run_file.RunError(f"{self.remote}: {self.name} moves on faster than it can be pushed to: try again")

    def _commit(self, tip: str | None, more: Callable[..., Mapping[str, str]], message: str) -> str | None:
        there = self.files(tip)
        known = functools.cache(lambda name: self.text(there[name]) if name in there else "")
        added = {name: text for name, text in more(known).items() if text}
        if not added:
            return None
        for name, text in added.items():
            there[name] = f"100644 blob {self.git('hash-object', '-w', '--stdin', given=known(name) + text).strip()}"
        tree = self.git("mktree", "-z", given="".join(f"{said}\t{name}\0" for name, said in there.items())).strip()
        return self.git("commit-tree", tree, *(["-p", tip] if tip else []), "-m", message).strip()

    def _push(self, commit: str, tip: str | None) -> bool:
        """Whether the remote took it; False if another writer was faster."""
        done = self.run("push", "--quiet", "--no-verify", "--", self.address, f"{commit}:{self.ref}")
        if done.returncode == 0:
            return True
        if self._listed() == tip and not any(word in done.stderr for word in LOCKED):
            raise run_file.RunError(f"{self.remote}: {self.name} cannot be pushed to: {done.stderr}")
        return False

    def git(self, *words: str, given: str = "") -> str:
        done = self.run(*words, given=given)
        if done.returncode:
            raise run_file.RunError(f"git {words[0]}, of {self.remote}: {done.stderr}")
        return done.stdout

    def run(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run git, whose bytes stay what they are, ends of lines too."""
        command = ["git", *(word for one in ALONE for word in ("-c", one)), *words]
        environment = {**os.environ, **AUTHOR, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **self.environment}
        try:
            done = subprocess.run(command, input=_bytes(given), capture_output=True, check=False, env=environment)  # noqa: S603
        except OSError as error:
            raise run_file.RunError(f"git cannot be started: {error}") from error
        said = _text(done.stderr).strip() or f"it ended with code {done.returncode}, without a word"
        return subprocess.CompletedProcess(command, done.returncode, _text(done.stdout), said)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(said: bytes) -> str:
    return said.decode("utf-8", "surrogateescape")


@contextmanager
def opened(remote: str, name: str) -> Iterator[Branch]:
    """The branch, with objects in a folder of their own beside those of the repository of the current folder."""
    here = Branch(remote, name)
    if here.run("check-ref-format", "--branch", name).returncode:
        raise run_file.RunError(f"{name!r} is no name of a branch")
    address = here.run("remote", "get-url", "--push", "--", remote).stdout.strip() or remote
    with tempfile.TemporaryDirectory(prefix="flashinfer-perf-") as folder:
        found = here.run("rev-parse", "--git-path", "objects")
        own = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": _absolute(found.stdout)}
        if found.returncode:
            here.git("init", "--quiet", "--bare", folder)
            own = {"GIT_DIR": folder}
        yield Branch(remote, name, own, address)


def _absolute(said: str) -> str:
    return str(Path(said.rstrip("\n")).absolute())
