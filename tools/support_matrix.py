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

from pytest_flashinfer_perf.extensions.apis import templates
from pytest_flashinfer_perf.extensions.apis.routine import declared
from pytest_flashinfer_perf.extensions.apis.templates import Api
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
INTRODUCTION = """# Support matrix

Written by `tools/support_matrix.py` with FlashInfer {version} installed; a test keeps it true.

*Declared for*: of the compute capabilities {asked} those on which the backend runs.
FlashInfer's decorators name them; where there is none, our table in `capability.py` does. A shape may still be
refused, with a sentence.

*Ran on an H200*: how many rows of the tables in [evidence](../evidence/README.md) were measured with this backend,
each checked against the fp32 reference before and after. *CPU only*: no GPU has run it for this project. Its call is
bound to the signature of the installed library. Where a kernel has a layout of its own, its arguments are decoded again
and compared.
"""


def device(capability_of: tuple[int, int]) -> Device:
    return Device(torch.device("cuda", 0), GPUS[capability_of], capability_of, "", 0, 0)


def declared_for(backend: Backend[Any, Any]) -> str:
    if not backend.api:
        return "any device"
    where = capability.hardware(backend.runs_as, backend.api)
    return ", ".join(f"{a}.{b}" for a, b in GPUS if where(device((a, b))) is None) or "none"


ROUTINE = re.compile(r"([\w.:]+) on cuda:\d+ NVIDIA H200:")
ROW = re.compile(r"[* ] (\S+)(?: \(\S+\))? +[\d.]+ [mu]?s +[\d.]+%")
PAIR = re.compile(r"  (\S+) +[\d.]+ [mu]?s +[\d.]+ [mu]?s +-?[\d.]+%")  # of vllm_decode's table
MODE = re.compile(r"-(?:q|kv|o)(?:fp8|nvfp4)")  # all modes of a shape are compared with the one baseline


def measured() -> Counter[tuple[str, str, str]]:
    """Rows per routine, backend and FlashInfer, as the terminal printed them."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for page in sorted(EVIDENCE.glob("*.md")):
        release = re.search(r"^# .*FlashInfer (\d+\.\d+\.\d+)", page.read_text())
        if release:
            seen.update((*at, release[1]) for at in rows(page))
    return seen


def rows(page: Path) -> Iterator[tuple[str, str]]:
    routine: str | None = None
    baselines: set[str] = set()
    for line in page.read_text().splitlines():
        heading, row = ROUTINE.match(line), ROW.match(line)
        routine = heading[1] if heading else None if line.startswith("```") else routine
        if routine and row:
            yield routine, row[1]
        if pair := PAIR.match(line):
            yield "vllm_decode", "trtllm"
            baselines.add(MODE.sub("", pair[1]))
    yield from (("vllm_decode", "baseline") for _ in baselines)


def ran(seen: Counter[tuple[str, str, str]], routine: str, backend: str) -> str:
    cases = [f"{count} with {at}" for (r, b, at), count in sorted(seen.items()) if (r, b) == (routine, backend)]
    return "; ".join(cases) or "CPU only"


def lines() -> Iterator[str]:
    yield INTRODUCTION.format(version=version("flashinfer-python"), asked=", ".join(f"{a}.{b}" for a, b in GPUS))
    seen = measured()
    for routine in sorted(all_routines().values(), key=lambda r: (r.family, r.name)):
        yield from routine_lines(routine, seen)
    yield from api_lines(seen)


def routine_lines(routine: AnyRoutine, seen: Counter[tuple[str, str, str]]) -> Iterator[str]:
    yield f"## {routine.name}\n"
    yield "| backend | FlashInfer API | declared for | ran on an H200, cases |\n|---|---|---|---|"
    for backend in routine.backends.values():
        api = f"`{backend.api}`" if backend.api else ""
        yield f"| {backend.name} | {api} | {declared_for(backend)} | {ran(seen, routine.name, backend.name)} |"
    yield ""


APIS = """## APIs with a trace template

{count} templates of FlashInfer {version}, each [a case](apis.md). *Declared for*: by the API's own decorators; where
it has none, the library says when it is called.
"""


def api_lines(seen: Counter[tuple[str, str, str]]) -> Iterator[str]:
    found = templates.installed()
    yield APIS.format(count=len(found.apis), version=found.version)
    yield "| API | backends | declared for | ran on an H200, cases |\n|---|---|---|---|"
    for api in found.usable:
        ran_on = "; ".join(f"{name}: {ran(seen, api.name, name)}" for name in api.backends)
        where = "; ".join(sorted({api_declared_for(api, name) for name in api.backends}))
        seen_here = ran_on if "with" in ran_on else "CPU only"
        yield f"| `{api.name}` | {', '.join(api.backends)} | {where} | {seen_here} |"
    yield ""
    yield "| API without a case | reason |\n|---|---|"
    for api in found.apis:
        if api.missing:
            yield f"| `{api.name}` | {api.missing} |"


def api_declared_for(api: Api, backend: str) -> str:
    where = declared(api, backend)
    refused = [name for name in GPUS if where(device(name))]
    accepted = ", ".join(f"{a}.{b}" for a, b in GPUS if (a, b) not in refused)
    return (accepted or "none") if refused else "not stated"


if __name__ == "__main__":
    print("\n".join(lines()).rstrip())
