"""List the templates of the installed FlashInfer, in a child process once per version."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import platformdirs

from pytest_flashinfer_perf.apis import known, templates
from pytest_flashinfer_perf.apis.known import Registry
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.machine.requirements import PROJECT, version

FORMAT = 3
NOTHING = Registry("", (), {})


class DiscoveryError(FlashinferPerfError):
    """FlashInfer's templates cannot be listed; the sentence has the error of its import."""


@functools.cache
def registry() -> Registry:
    """All templates; empty if FlashInfer is not installed."""
    found = importlib.util.find_spec("flashinfer")
    if found is None or found.origin is None:
        return NOTHING
    kept = _kept_at(Path(found.origin))
    try:
        return known.from_json(json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return _asked(kept)


def _kept_at(origin: Path) -> Path:
    """By version, by place, since a checkout may change, by what its packages let it import, and by what is by hand."""
    by_hand = sorted(Path(templates.__file__).parent.glob("*.py"))
    packages = (PROJECT, "torch", "nvidia-cutlass-dsl", "triton")
    stated = [str(FORMAT), str(origin), str(origin.stat().st_mtime_ns), *(str(version(one)) for one in packages)]
    stated += [f"{path.name} {path.stat().st_mtime_ns}" for path in by_hand]
    name = f"{version(packages[0])}-{hashlib.sha256(' '.join(stated).encode()).hexdigest()[:12]}.json"
    return platformdirs.user_cache_path("pytest-flashinfer-perf") / "apis" / name


def _asked(kept: Path) -> Registry:
    command = [sys.executable, "-m", "pytest_flashinfer_perf.apis.registry"]
    package = str(Path(known.__file__).parents[2])
    path = [package, *sys.path]
    child = subprocess.run(  # noqa: S603 - this interpreter, on a module of this package
        [*command[:1], "-c", _PROGRAM, *path], capture_output=True, text=True, check=False
    )
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise DiscoveryError(f"FlashInfer's trace templates cannot be listed: {last}")
    found = known.from_json(json.loads(child.stdout))
    write_whole(kept, child.stdout)
    return found


_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from pytest_flashinfer_perf.apis import registry; sys.exit(registry.main())"
)
