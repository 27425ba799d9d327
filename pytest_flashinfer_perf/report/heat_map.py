"""Medians of a routine in a grid of batch size and sequence length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_flashinfer_perf.report.story import Comparison
from pytest_flashinfer_perf.runs.formatting import grouped

BATCH, KEYS, QUERIES = ("batch_size",), ("s_kv", "max_seq_len"), ("s_qo",)
Cells = Mapping[str, str]


@dataclass(frozen=True)
class HeatMap:
    """Shapes in a grid of batch and sequence; the shapes of a group differ in nothing else."""

    sequences: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[int, Cells], ...]], ...]


def heat_map(comparison: Comparison) -> HeatMap | None:
    """None of a routine without batch and sequence, or with a single one of them."""
    known = {shape: at for shape in comparison.shapes if (at := _at(comparison, shape)) and comparison.fastest(shape)}
    sequences = tuple(dict.fromkeys(_length(at) for at in sorted(known.values(), key=lambda at: at[1:])))
    groups = grouped(known, lambda shape: _beside(shape, known[shape]))
    found = tuple((title, tuple(_by_batch({shape: known[shape] for shape in alike}))) for title, alike in groups)
    return HeatMap(sequences, found) if len(known) > 1 else None


def _by_batch(known: Mapping[str, tuple[int, int, int]]) -> Iterator[tuple[int, Cells]]:
    for batch, shapes in grouped(sorted(known, key=lambda shape: known[shape]), lambda shape: known[shape][0]):
        yield batch, {_length(known[shape]): shape for shape in shapes}


def _at(comparison: Comparison, shape: str) -> tuple[int, int, int] | None:
    """Batch, keys and queries of a request."""
    row = next(iter(comparison.shapes[shape].values())).row
    params = row.params if row else {}
    batch, keys, queries = (next((params[n] for n in names if n in params), None) for names in (BATCH, KEYS, QUERIES))
    return None if batch is None or keys is None else (batch, keys, queries or 1)


def _length(at: tuple[int, int, int]) -> str:
    _, keys, queries = at
    return f"{keys}" if queries == 1 else f"{keys} (q {queries})"


def _beside(shape: str, at: tuple[int, int, int]) -> str:
    """The shape's id without batch and sequence."""
    shown = {f"{letter}{size}" for letter, size in zip("bsq", at, strict=True)}
    return "-".join(word for word in shape.split("-") if word not in shown)
