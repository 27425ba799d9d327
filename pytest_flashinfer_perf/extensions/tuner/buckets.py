"""Sizes that FlashInfer's tuner takes for others: it tunes some of them, its buckets, and rounds the rest to these."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


def tuner() -> Any:
    return importlib.import_module("flashinfer.autotuner").AutoTuner.get()


class Spec(NamedTuple):
    """A dimension that the tuner rounds, of one or several inputs; `bucket` says what a size is tuned as."""

    inputs: Sequence[int]
    dimensions: Sequence[int]
    bucket: Callable[[int], int]

    def size(self, shapes: Sequence[Any]) -> int:
        return int(shapes[self.inputs[0]][self.dimensions[0]])


def specs(tuning_config: Any, inputs: Sequence[Any]) -> list[Spec]:
    """The specs of inputs that are there: some are optional."""
    bucket, declared = tuner().get_effective_map_to_tuning_buckets, tuning_config.dynamic_tensor_specs
    all_specs = (Spec(one.input_idx, one.dim_idx, bucket(tuning_config, nth)) for nth, one in enumerate(declared))
    return [spec for spec in all_specs if inputs[spec.inputs[0]] is not None]


def of(specs: Sequence[Spec], shapes: Sequence[Any]) -> list[int]:
    """The bucket that a size of these shapes is tuned as."""
    return [spec.bucket(spec.size(shapes)) for spec in specs]


def shapes(inputs: Sequence[Any]) -> list[Any]:
    """The shapes as the tuner's profiles have them: what is no tensor has one dimension of 0."""
    return [getattr(tensor, "shape", (0,)) for tensor in inputs]
