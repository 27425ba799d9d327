"""What runs where, and what has been seen to: python tools/support_matrix.py > docs/support-matrix.md

Where a backend runs is asked of the installed FlashInfer; what ran is read from the tables in evidence/.
"""

import re
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Backend

EVIDENCE = Path(__file__).parents[1] / "evidence"
GPUS = {
    (8, 0): "A100",
    (8, 9): "L40S",
    (9, 0): "H200",
    (10, 0): "B200",
    (10, 3): "B300",
    (10, 7): "Rubin",
    (12, 0): "RTX 5090",
}
INTRODUCTION = """# Which backend runs where

```sh
flashinfer-perf doctor     # the same for this machine, with what is missing
```

By FlashInfer's decorators, or by our table in `capability.py` where there is none; a shape may still be refused. In
brackets: so many cases were measured on an H200 ([evidence](../evidence/README.md)), each checked before and after.
Without a number no GPU has run it for this project. `torch`, the reference, runs anywhere. FlashInfer's other APIs:
[`flashinfer-perf list --api`](apis.md). Written by `tools/support_matrix.py` with FlashInfer {version} installed.
"""
ROUTINE = re.compile(r"([\w.:]+) on cuda:\d+ NVIDIA H200:")
ROW = re.compile(r"[* ] (\S+)(?: \(\S+\))? +[\d.]+ [mu]?s +[\d.]+%")
PAIR = re.compile(r"  (\S+) +[\d.]+ [mu]?s +[\d.]+ [mu]?s +-?[\d.]+%")  # of vllm_decode's table
MODE = re.compile(r"-(?:q|kv|o)(?:fp8|nvfp4)")  # all modes of a shape are compared with the one baseline
RowCounts = Counter[tuple[str, str]]


def measured() -> RowCounts:
    """Rows per routine and backend, as the terminal printed them."""
    return Counter(row for page in EVIDENCE.glob("*.md") for row in rows(page.read_text()))


def rows(page: str) -> Iterator[tuple[str, str]]:
    routine: str | None = None
    baselines: set[str] = set()
    if not re.search(r"^# .*FlashInfer \d+\.\d+\.\d+", page):
        return
    for line in page.splitlines():
        heading, row = ROUTINE.match(line), ROW.match(line)
        routine = heading[1] if heading else None if line.startswith("```") else routine
        if routine and row:
            yield routine, row[1]
        if pair := PAIR.match(line):
            yield "vllm_decode", "trtllm"
            baselines.add(MODE.sub("", pair[1]))
    yield from (("vllm_decode", "baseline") for _ in baselines)


def lines() -> Iterator[str]:
    yield INTRODUCTION.format(version=version("flashinfer-python"))
    yield f"All are {', '.join(GPUS.values())}.\n"
    yield "| routine | GPUs | backends |"
    yield "|---|---|---|"
    row_counts = measured()
    for routine in sorted(all_routines().values(), key=lambda r: (r.family, r.name)):
        yield from routine_lines(routine, row_counts)


def routine_lines(routine: AnyRoutine, row_counts: RowCounts) -> Iterator[str]:
    """A line for those of its backends that run on the same GPUs."""
    backends: dict[str, list[str]] = {}
    for backend in routine.backends.values():
        if backend.api:
            cases = row_counts[routine.name, backend.name]
            backends.setdefault(where(backend), []).append(f"{backend.name} ({cases})" if cases else backend.name)
    first = f"`{routine.name}`"
    for gpus, names in backends.items():
        yield f"| {first} | {gpus} | {', '.join(names)} |"
        first = ""


def where(backend: Backend[Any, Any]) -> str:
    obstacle = capability.hardware(backend.runs_as, backend.api)
    runs = [name for at, name in GPUS.items() if obstacle(Device(torch.device("cuda", 0), name, at, "", 0, 0)) is None]
    rest = [name for name in GPUS.values() if name not in runs]
    return f"all but {', '.join(rest)}" if 0 < len(rest) < len(runs) else ", ".join(runs) if rest else "all"


if __name__ == "__main__":
    print("\n".join(lines()).rstrip())
