"""The environment in which a revision is measured: a worktree with its build, or an installed release."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_flashinfer_perf.api import Run, processes, requirements, run_file
from pytest_flashinfer_perf.extensions.bisect.bisection import PointError, Question, Side
from pytest_flashinfer_perf.extensions.bisect.histories import git
from pytest_flashinfer_perf.extensions.compare import sides


def environment(name: str, command: Sequence[str], paths: Sequence[Path], **variables: str) -> processes.Environment:
    """`command` with these folders first on PYTHONPATH."""
    path = os.pathsep.join(filter(None, [*map(str, paths), os.environ.get("PYTHONPATH")]))
    assigned = [f"{variable}={value}" for variable, value in {"PYTHONPATH": path, **variables}.items()]
    return processes.Environment(name, ("env", *assigned, *command))


def from_anywhere(command: Sequence[str]) -> tuple[str, ...]:
    return str(Path(command[0]).absolute()) if "/" in command[0] else command[0], *command[1:]


@dataclass
class Worktrees:
    """Two worktrees of the user's repository, one for each side of a comparison.

    Tests are started in the folder `below` of a worktree, or in the current folder if it is None.
    """

    repo: Path
    folder: Path
    command: Sequence[str]
    below: Path | None
    build: str | None = None
    at: dict[str, str] = field(default_factory=dict)

    def prepared(self, side: Side, point: str) -> processes.Environment:
        tree = self._tree(side, point)
        if self.at.get(side) != point:
            self.at.pop(side, None)
            git(tree, "checkout", "--quiet", "--detach", "--force", point)
            if self.build:
                sides.logged(["sh", "-c", self.build], self.folder / "builds" / f"{side}-{point}.log", tree)
            self.at[side] = point
        return self._environment(side, tree)

    def _tree(self, side: Side, point: str) -> Path:
        path = self.folder / "trees" / side
        if not path.exists():
            git(self.repo, "worktree", "prune")
            git(self.repo, "worktree", "add", "--quiet", "--detach", str(path), point)
        return path

    def _environment(self, side: Side, tree: Path) -> processes.Environment:
        """The environment of a worktree, without .pyc files: files of two checkouts can have the same size and date."""
        variables = {"PYTHONDONTWRITEBYTECODE": "1"}
        if (tree / "flashinfer" / "__init__.py").is_file():  # its cache is keyed by the version, which commits share
            variables["FLASHINFER_WORKSPACE_BASE"] = str(self.folder / "compiled" / side)
        paths = [path for path in (tree, tree / "src") if path.is_dir()]
        in_tree = environment(side, self.command, paths, **variables)
        if self.below is None:
            return in_tree
        there = f"--chdir={tree / self.below}"
        return processes.Environment(side, ("env", there, *in_tree.command[1:], f"--rootdir={tree}"))

    def remove(self) -> None:
        for side in ("base", "head"):
            path = self.folder / "trees" / side
            if path.exists():
                git(self.repo, "worktree", "remove", "--force", str(path))


def worktrees(
    folder: Path, arguments: Sequence[str], command: Sequence[str], output: Path, build: str | None
) -> Worktrees:
    """The worktrees in which pytest measures commits of the folder's repository, with files in `output`."""
    repo = Path(git(folder, "rev-parse", "--show-toplevel"))
    here = Path.cwd().resolve()
    below = here.relative_to(repo) if here.is_relative_to(repo) else None
    for word in arguments:  # a test in the user's own checkout would be the same at each commit
        path = Path(word.partition("::")[0])
        if path.exists() and path.resolve().is_relative_to(repo) and (below is None or path.is_absolute()):
            raise run_file.RunError(f"{word} is in the checkout itself: start this in {repo}, and name it from there")
    return Worktrees(repo, output, from_anywhere(command), below, build)


# Folders that .pth files add to the path: of PYTHONPATH's folders Python itself reads none.
ADDED = "import json, site, sys; known = set(sys.path); site.addsitedir(sys.argv[1]); "
ADDED += "print(json.dumps([one for one in sys.path if one not in known]))"


IMPORTS = """
import contextlib, io, json
error = None
with contextlib.redirect_stdout(io.StringIO()):
    try:
        import flashinfer
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
print(json.dumps(error))
"""


@dataclass(frozen=True)
class Installed:
    """Each release is installed into a folder of its own, which precedes the installed packages on PYTHONPATH.

    What the release requires and does not find is installed there too, but torch: it belongs to this machine's CUDA.
    """

    folder: Path
    command: Sequence[str]
    install: Sequence[str]
    wheels: Mapping[str, Path]

    def prepared(self, side: Side, point: str) -> processes.Environment:
        site = self.folder / "releases" / point
        if not site.exists():
            site.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=site.parent) as folder:
                unfinished = Path(folder, "site")
                self._add(str(self.wheels.get(point) or f"{requirements.PROJECT}=={point}"), unfinished, point)
                self._complete(unfinished, point)
                self._verify_imports(unfinished, point)
                unfinished.replace(site)
        return self._environment(side, site)

    def _verify_imports(self, site: Path, point: str) -> None:
        try:
            error = sides.answer_of(self._environment(point, site), IMPORTS)
        except run_file.RunError as ended:  # the import ended the process
            error = str(ended)
        if error:
            raise run_file.RunError(f"{point} does not import here: {error}")

    def _complete(self, site: Path, point: str) -> None:
        """Add what the release requires, and what that requires in turn; what is lacking then is said before a run."""
        tried = {requirements.TORCH}
        while lacking := [one for one in sides.unmet(self._environment(point, site)) if one.name not in tried]:
            for one in lacking:
                tried.add(one.name)
                with suppress(run_file.RunError):  # the log has pip's reason
                    self._add(one.requirement, site, f"{point}-{one.name}")

    def _add(self, wanted: str, site: Path, name: str) -> None:
        """Install by way of an empty folder: pip would not touch a folder that two packages share."""
        with tempfile.TemporaryDirectory(dir=site.parent) as alone:
            words = [*self.install, "--no-deps", "--target", alone, wanted]
            sides.logged(words, self.folder / "builds" / f"{name}.log")
            shutil.copytree(alone, site, dirs_exist_ok=True)

    def _environment(self, name: str, site: Path) -> processes.Environment:
        plain = environment(name, self.command, [site])
        if not any(site.glob("*.pth")):
            return plain
        return environment(name, self.command, [*map(Path, sides.answer_of(plain, ADDED, str(site))), site])

    def remove(self) -> None:
        shutil.rmtree(self.folder / "releases", ignore_errors=True)


def installer(python: Sequence[str], wheels: Path | None = None) -> list[str]:
    """The command that installs packages: that environment's pip, or uv; both look into the folder of wheels too."""
    also = [] if wheels is None else ["--find-links", str(wheels.resolve())]
    has_pip = subprocess.run([*python, "-m", "pip", "--version"], capture_output=True, check=False)  # noqa: S603
    if has_pip.returncode == 0:
        return [*python, "-m", "pip", "install", "--no-compile", "--quiet", "--disable-pip-version-check", *also]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", python[-1], *also]
    raise run_file.RunError(f"{shlex.join(python)} has no pip, and there is no uv on the path: install either")


Places = Worktrees | Installed


@dataclass
class Processes:
    """Starts pytest with these arguments in a revision's worktree or with a release's packages."""

    places: Places
    arguments: Sequence[str]
    output: Path
    gpu: str | None
    allowed: frozenset[str] = frozenset()
    tests: dict[str, str] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)

    def __call__(self, question: Question, side: Side, nth: int, cases: Iterable[str] | None) -> Run:
        point, folder = question.point(side), self.output / question.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.tests.update(question.tests)
        only = None if cases is None else [self.tests[case] for case in cases]
        for one in ("base", "head"):
            self._verify_complete(one, question.point(one))
        try:
            where, stem = self.places.prepared(side, point), folder / f"pair-{nth + 1:02}-{side}"
            run = sides.measured(where, self.arguments, stem, only, f"  {folder.name}, {stem.name}").run
        except run_file.RunError as error:
            raise PointError(point, error) from error
        sides.verify(run, self.gpu)
        self.tests.update({row.case: row.fullname for row in run.rows})
        return run

    def _verify_complete(self, side: Side, point: str) -> None:
        """Before anything is measured: a release that lacks what it requires would be blamed for the other kernels."""
        if point in self.complete:
            return
        try:
            sides.verify_complete(replace(self.places.prepared(side, point), name=point), self.allowed)
        except run_file.RunError as error:
            raise PointError(point, error) from error
        self.complete.add(point)
