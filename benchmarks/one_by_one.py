"""For the evidence that prebuilding pays: `-p one_by_one` compiles each module as FlashInfer itself does, one after the
other, and all of a module's files at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pytest_flashinfer_perf.extensions.prebuild import building


def built(specs: Sequence[Any], finished: Callable[..., object], step: Callable[[int, int], object]) -> None:
    for done, spec in enumerate(specs):
        spec.build()
        finished(spec.name, None)
        step(done + 1, done + 1)


def pytest_configure() -> None:
    building.built = built
