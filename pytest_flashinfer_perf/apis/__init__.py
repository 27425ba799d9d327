"""FlashInfer's own trace templates as routines: an API that can make its inputs and knows its answer is a case."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_flashinfer_perf.apis import discovery

if TYPE_CHECKING:
    from pytest_flashinfer_perf.apis.routine import ApiRoutine


@functools.cache
def all_apis() -> dict[str, ApiRoutine]:
    """Those of the installed FlashInfer, by name; none where it is not installed."""
    from pytest_flashinfer_perf.apis import routine

    return {api.name: routine.of(api) for api in discovery.registry().usable}
