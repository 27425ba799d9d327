"""The output of `flashinfer-perf list --api`: all templates of the installed FlashInfer, by family."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pytest_flashinfer_perf.apis.known import WHAT_LACKED, Api, Axis, Registry
from pytest_flashinfer_perf.runs.formatting import wrapped


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
    by_hand = sum(api.by_hand == WHAT_LACKED for api in usable)
    own = f", {by_hand} of them by hand" if by_hand else ""
    yield f"FlashInfer {found.version}: {len(usable)} of {len(asked)} templates can be measured{own}"
    for module, reason in found.failed.items():
        yield from wrapped(f"  cannot be imported: {module}: {reason}", 12)


def _api(api: Api) -> Iterator[str]:
    yield f"  {api.name}{f' (by hand: {api.by_hand})' if api.by_hand else ''}"
    if api.missing:
        yield from wrapped(f"    {api.missing}", 14)
        return
    yield from wrapped(f"    backends  {' '.join((*api.backends, 'torch'))}", 14)
    yield from wrapped(f"    flags     {' '.join(map(_flag, api.axes))}", 14)


def _flag(axis: Axis) -> str:
    return f"--{axis.name}" if axis.default is None else f"--{axis.name}={axis.default}"
