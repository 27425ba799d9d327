"""The lines of `flashinfer-perf list --api`: every template of the installed FlashInfer, by family."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator

from pytest_flashinfer_perf.apis.known import Api, Axis, Registry
from pytest_flashinfer_perf.runs.formatting import WIDTH


def lines(found: Registry, part: str = "") -> Iterator[str]:
    asked = [api for api in found.apis if part.lower() in api.name.lower()]
    for family, members in itertools.groupby(
        sorted(asked, key=lambda api: (api.family, api.name)), lambda api: api.family
    ):
        each = list(members)
        usable = [api for api in each if not api.missing]
        yield f"{family} ({len(usable)} of {len(each)} templates can be measured)"
        for api in each:
            yield from _api(api)
        yield ""
    usable = [api for api in asked if not api.missing]
    yield f"FlashInfer {found.version}: {len(usable)} of {len(asked)} templates can be measured"
    for module, reason in found.failed.items():
        yield from _wrapped(f"cannot be imported: {module}: {reason}", 2)


def _api(api: Api) -> Iterator[str]:
    yield f"  {api.name}"
    if api.missing:
        yield from _wrapped(api.missing, 4)
        return
    yield from _wrapped(f"backends  {' '.join((*api.backends, 'torch'))}", 4)
    yield from _wrapped(f"flags     {' '.join(map(_flag, api.axes))}", 4)


def _flag(axis: Axis) -> str:
    return f"--{axis.name}" if axis.default is None else f"--{axis.name}={axis.default}"


def _wrapped(text: str, indent: int) -> list[str]:
    before = " " * indent
    hanging = f"{before}{' ' * 10}"
    return textwrap.wrap(text, WIDTH, initial_indent=before, subsequent_indent=hanging, break_on_hyphens=False)
