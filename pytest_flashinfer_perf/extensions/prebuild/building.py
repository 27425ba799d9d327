"""Compile modules with one ninja for all files, and leave its logs where FlashInfer's ninja looks for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import FlashinferPerfError, builds, errors, file_io

STEP = re.compile(r"\[\d+/\d+\] ")
OF_CUTLASS = re.compile(r"_sm\d+|cutlass|gemm|moe")
LOGS = (".ninja_log", ".ninja_deps")
Finished = Callable[[str, "str | None"], None]


class NinjaError(FlashinferPerfError):
    """ninja is not installed."""


def verify_ninja() -> None:
    """Raise without ninja in PATH. FlashInfer uses the same one; another version would not accept its logs."""
    if shutil.which("ninja") is None:
        raise NinjaError("there is no ninja in PATH: pip install ninja, and keep it in PATH for the run, too")


def built(specs: Sequence[Any], finished: Finished) -> None:
    """Compile modules, and tell how each of them ended by `finished(module, error)`."""
    from filelock import FileLock

    with ExitStack() as stack:
        for spec in sorted(specs, key=lambda spec: str(spec.name)):
            stack.enter_context(FileLock(spec.lock_path, thread_local=False))
        stale = []
        for spec in sorted(specs, key=_work, reverse=True):
            error = _written(spec)
            if error is None and not _is_current(spec):
                stale.append(spec)
            else:
                finished(spec.name, error)
        if stale:
            _compile(stale, finished)


def _work(spec: Any) -> int:
    """The estimated work: the longest module is started first. A file of CUTLASS kernels takes five times as long."""
    return len(spec.sources) * (5 if OF_CUTLASS.search(spec.name) else 1)


def _written(spec: Any) -> str | None:
    try:
        spec.write_ninja()
    except Exception as error:  # noqa: BLE001 - an error of this module, like one of the compiler
        return errors.in_one_line(error)
    return None


def _is_current(spec: Any) -> bool:
    words = ["ninja", "-n", "-C", str(builds.ninja_folder(spec)), "-f", str(spec.ninja_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    return "no work to do" in done.stdout


def _compile(specs: Sequence[Any], finished: Finished) -> None:
    with tempfile.TemporaryDirectory() as folder:
        all_of_them = Path(folder, "build.ninja")
        all_of_them.write_text(
            "".join((f"builddir = {folder}\n", *(f"subninja {spec.ninja_path}\n" for spec in specs)))
        )
        jobs = os.environ.get("MAX_JOBS", "")  # FlashInfer's own limit
        limit = ["-j", jobs] if jobs.isdecimal() else []
        words = ["ninja", "-v", "-k", "0", "-C", str(builds.ninja_folder(specs[0])), "-f", str(all_of_them), *limit]
        with subprocess.Popen(  # noqa: S603
            words, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as running:
            _follow(running.stdout or (), {spec.name for spec in specs}, finished)
        written = [path for name in LOGS if (path := Path(folder, name)).exists()]
        for spec in specs:
            for log in written:
                shutil.copyfile(log, builds.ninja_folder(spec) / log.name)


def _follow(output: Iterable[str], waiting: set[str], finished: Finished) -> None:
    """Tell which of the modules are compiled or fail, as soon as ninja says so."""
    command: list[str] = []
    for command in _commands(output):
        if STEP.match(command[0]):
            failure = next((line for line in command if line.startswith(builds.FAILED)), None)
            written = Path((failure or command[0]).split()[-1])
            if written.parent.name in waiting and (failure or written.suffix == ".so"):
                waiting.remove(written.parent.name)
                finished(written.parent.name, builds.first_error("".join(command)) if failure else None)
    for module in sorted(waiting):
        finished(module, builds.first_error("".join(command)))


def _commands(output: Iterable[str]) -> Iterator[list[str]]:
    """The lines of each command: ninja prints one when it has ended, followed by the output of that command."""
    lines: list[str] = []
    for line in output:
        if STEP.match(line) and lines:
            yield lines
            lines = []
        lines.append(line)
    if lines:
        yield lines


# Copy modules for another machine, in a package that FlashInfer looks for and loads from.

PACKAGE, FOLDER = "flashinfer_jit_cache", "jit_cache"
# 0.6.18 asks for the folder, 0.7.2 for providers with their modules and architectures.
INIT = '''"""Made by `flashinfer-perf prebuild`: FlashInfer's modules for {architectures}."""

import pathlib
import types

__version__ = {version!r}
FOLDER = pathlib.Path(__file__).parent / {folder!r}


def get_jit_cache_dir():
    return str(FOLDER)


def get_jit_cache_providers():
    return [
        types.SimpleNamespace(
            provider_id=__name__,
            distribution=__name__,
            version=__version__,
            jit_cache_dir=str(FOLDER),
            cuda_architectures={architectures!r},
            modules=[path.name for path in FOLDER.iterdir()],
        )
    ]
'''


class ArtifactError(FlashinferPerfError):
    """The folder holds modules of another FlashInfer, or for other GPUs."""


def verify(folder: Path) -> None:
    """Raise if the folder has modules of another FlashInfer or for other GPUs; those of earlier runs are kept."""
    there = folder / PACKAGE / "__init__.py"
    file_io.verify_writable(there)
    if there.exists() and there.read_text(encoding="utf-8") != _init():
        raise ArtifactError(f"--output={folder}: {there} is of another FlashInfer or for other GPUs, name a new folder")


def write(folder: Path, specs: Iterable[Any]) -> None:
    package = folder / PACKAGE
    for spec in specs:
        library = package / FOLDER / spec.name / f"{spec.name}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(spec.get_library_path(), library)
    file_io.write_whole(package / "__init__.py", _init())


def _init() -> str:
    from flashinfer import __version__ as version
    from flashinfer.compilation_context import CompilationContext

    targets = [f"sm{major}{minor}" for major, minor in sorted(CompilationContext().TARGET_CUDA_ARCHS)]
    return INIT.format(version=version, folder=FOLDER, architectures=targets)
