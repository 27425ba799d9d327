"""Sizes that FlashInfer's tuner takes for others: it tunes some of them, its buckets, and rounds the rest to these.

A runner may keep entries by size all the same. What was tuned for a bucket then serves that one size alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
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
    """Those of inputs that are there, as some are optional."""
    bucket, declared = tuner().get_effective_map_to_tuning_buckets, tuning_config.dynamic_tensor_specs
    all_specs = (Spec(one.input_idx, one.dim_idx, bucket(tuning_config, nth)) for nth, one in enumerate(declared))
    return [spec for spec in all_specs if inputs[spec.inputs[0]] is not None]


def of(specs: Sequence[Spec], shapes: Sequence[Any]) -> list[int]:
    """What sizes of these shapes are tuned as."""
    return [spec.bucket(spec.size(shapes)) for spec in specs]


def shapes(inputs: Sequence[Any]) -> list[Any]:
    """As the tuner has them in profiles: what is no tensor has one dimension of 0."""
    return [getattr(tensor, "shape", (0,)) for tensor in inputs]


def rounded(specs: Sequence[Spec], runners: Sequence[Any], inputs: Sequence[Any]) -> Iterator[str]:
    """Sizes that the tuner takes for others, and whether what was tuned for that bucket serves them."""
    for spec in specs:
        size = spec.size(shapes(inputs))
        bucket = spec.bucket(size)
        if bucket != size:
            where = f"input {spec.inputs[0]} dimension {spec.dimensions[0]}"
            yield f"{where}: {size} is tuned as {bucket}"
            for runner in runners:
                if _is_kept_by_size(runner, inputs, spec, bucket):
                    name = type(runner).__name__
                    yield f"{where}: {name} keeps entries by size, so that one of {bucket} does not serve {size}"


def _is_kept_by_size(runner: Any, inputs: Sequence[Any], spec: Spec, bucket: int) -> bool:
    """Whether a runner's own part of an entry's key would be another one at the bucket's size.

    FlashInfer wants it to be the same. It is not for cuBLASLt's BF16 runner: see evidence/tuner-h200-0.7.2.md.
    """
    resized = list(inputs)
    for nth, dim in zip(spec.inputs, spec.dimensions, strict=True):
        if inputs[nth] is not None:
            shape = list(inputs[nth].shape)
            shape[dim] = bucket
            resized[nth] = inputs[nth].new_empty(shape)
    return bool(runner.get_cache_key_extras(inputs) != runner.get_cache_key_extras(resized))
