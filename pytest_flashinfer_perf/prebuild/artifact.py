"""Copy modules for another machine, in a package that FlashInfer looks for and loads from."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import verify_writable, write_whole

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
    verify_writable(there)
    if there.exists() and there.read_text(encoding="utf-8") != _init():
        raise ArtifactError(f"--output={folder}: {there} is of another FlashInfer or for other GPUs, name a new folder")


def write(folder: Path, specs: Iterable[Any]) -> None:
    package = folder / PACKAGE
    for spec in specs:
        library = package / FOLDER / spec.name / f"{spec.name}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(spec.get_library_path(), library)
    write_whole(package / "__init__.py", _init())


def _init() -> str:
    from flashinfer import __version__ as version
    from flashinfer.compilation_context import CompilationContext

    targets = [f"sm{major}{minor}" for major, minor in sorted(CompilationContext().TARGET_CUDA_ARCHS)]
    return INIT.format(version=version, folder=FOLDER, architectures=targets)
