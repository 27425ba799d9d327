"""The roof of a collective: how fast the links between the GPUs of a group are in one direction.

Measured once for a group of GPUs, by copies that each rank makes from the next one's memory while all others do so too,
and stored in the user's cache; and that of the vendor's datasheet. The bandwidth of a link in a row is held against it.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

import platformdirs
import torch

from pytest_flashinfer_perf.api import file_io as files
from pytest_flashinfer_perf.api import provenance
from pytest_flashinfer_perf.extensions.ranks.joined import Ranks

# Half of what a datasheet calls the bandwidth of NVLink, which counts both directions: bytes per second.
DATASHEET = {
    "NVIDIA A100-SXM4-80GB": 300e9,
    "NVIDIA H100 80GB HBM3": 450e9,
    "NVIDIA H200": 450e9,
    "NVIDIA B200": 900e9,
    "NVIDIA GB200": 900e9,
}
COPY_BYTES = 256 << 20
COPIES = 20


def roofs(ranks: Ranks) -> dict[str, float]:
    """Bytes per second by their source, the same on every rank; none on a CPU, or without symmetric memory."""
    known = {"measured": _measured(ranks), "datasheet": DATASHEET.get(ranks.device.name)}
    return {source: rate for source, rate in known.items() if rate is not None}


def _measured(ranks: Ranks) -> float | None:
    """All ranks measure, or none of them: the file may be there for some when another run has just written it."""
    if not ranks.device.is_gpu:
        return None
    path = _cache_file(ranks)
    stored = float(json.loads(path.read_text())) if os.access(path, os.R_OK) else None
    known: list[float] = [one for one in ranks.everybodys(stored) if one is not None]
    if len(known) == ranks.size:
        return min(known)
    try:
        rate = -ranks.agreed(-_rate(ranks))
    except (ImportError, RuntimeError):  # torch has no symmetric memory here, on no rank
        return None
    with suppress(OSError):
        files.write_whole(path, json.dumps(rate))
    return rate


def _cache_file(ranks: Ranks) -> Path:
    uuids = " ".join(sorted(map(str, ranks.everybodys(ranks.device.uuid))))
    name = hashlib.sha256(f"{uuids} {provenance.driver_version()} {torch.__version__}".encode()).hexdigest()[:32]
    return platformdirs.user_cache_path("pytest-flashinfer-perf") / "links" / f"{name}.json"


def _rate(ranks: Ranks) -> float:
    """The fastest copy, since it is a roof."""
    shared, handle = ranks.shared((COPY_BYTES,), torch.uint8)
    theirs = handle.get_buffer((ranks.rank + 1) % ranks.size, (COPY_BYTES,), torch.uint8)
    own = torch.empty_like(shared)
    own.copy_(theirs)
    ranks.device.synchronize()
    ranks.meet()
    fastest = min(_copied(own, theirs) for _ in range(COPIES))
    ranks.meet()  # nobody's memory goes while another reads it
    return COPY_BYTES / fastest


def _copied(own: torch.Tensor, theirs: torch.Tensor) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    own.copy_(theirs)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
