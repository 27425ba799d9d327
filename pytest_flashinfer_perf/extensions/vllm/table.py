"""vLLM's comparison from rows: TRT-LLM decode against the baseline of the same shape, as a table and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import Row, file_io, formatting

ROUTINE = "vllm_decode"
TYPES = ("q_dtype", "kv_dtype", "out_dtype")
TORCH_NAMES = {"fp8_e4m3": "torch.float8_e4m3fn", "nvfp4": "torch.uint8"}
HEADINGS = f"  {'':<30}{'trtllm':>10}{'baseline':>10}{'speedup':>9}"


@dataclass(frozen=True)
class Compared:
    """A mode of TRT-LLM's decode and the unquantised baseline of its shape."""

    trtllm: Row
    baseline: Row

    @property
    def speedup(self) -> float:
        """The share of the baseline's time that is saved: what the benchmark calls `speedup_percent`."""
        baseline, trtllm = self.baseline.stats.mean, self.trtllm.stats.mean
        return (baseline - trtllm) / baseline

    @property
    def unlike(self) -> bool:
        """Whether the two read and write different numbers of bits: then it is not only the kernels that differ."""
        return any(self.trtllm.params[t] != self.baseline.params[t] for t in TYPES)

    def columns(self) -> dict[str, Any]:
        """The benchmark's thirteen, in its order; times in milliseconds."""
        p = self.trtllm.params
        return {
            "batch_size": p["batch_size"],
            "trtllm_mean": 1e3 * self.trtllm.stats.mean,
            "trtllm_std": 1e3 * self.trtllm.stats.stddev,
            "baseline_mean": 1e3 * self.baseline.stats.mean,
            "baseline_std": 1e3 * self.baseline.stats.stddev,
            "speedup_percent": self.speedup,
            "q_dtype": _torch_name(p["q_dtype"]),
            "kv_cache_dtype": _torch_name(p["kv_dtype"]),
            "output_dtype": _torch_name(p["out_dtype"]),
            "block_size": p["block_size"],
            "num_kv_heads": p["num_kv_heads"],
            "head_size": p["head_size"],
            "max_seq_len": p["max_seq_len"],
        }


def _torch_name(dtype: str) -> str:
    return TORCH_NAMES.get(dtype, f"torch.{dtype}")


def compared(rows: Sequence[Row]) -> list[Compared]:
    ours = [row for row in rows if row.identity.routine == ROUTINE]
    baselines = {_shape(row): row for row in ours if row.identity.backend == "baseline"}
    return [
        Compared(r, baselines[_shape(r)]) for r in ours if r.identity.backend == "trtllm" and _shape(r) in baselines
    ]


def _shape(row: Row) -> tuple[Any, ...]:
    compared_over = (*TYPES, "backend")
    return (row.identity.device, *(value for name, value in sorted(row.params.items()) if name not in compared_over))


def lines(rows: Sequence[Row]) -> Iterator[str]:
    pairs = compared(rows)
    if pairs:
        yield ""
        yield "vllm_decode: mean time of trtllm against the unquantised baseline"
        yield HEADINGS
    for one in pairs:
        means = "".join(f"{formatting.duration(row.stats.mean):>10}" for row in (one.trtllm, one.baseline))
        note = " unlike precision" if one.unlike else ""
        yield f"  {one.trtllm.identity.shape:<30}{means}{100 * one.speedup:>8.1f}%{note}"


def write_csv(rows: Sequence[Row], folder: Path, now: datetime) -> Path | None:
    """Write the table, unless nothing was compared: an empty one would look like a run."""
    table = [one.columns() for one in compared(rows)]
    if not table:
        return None
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(table[0]))
    writer.writeheader()
    writer.writerows(table)
    path = folder / f"flashinfer_trtllm_benchmark_{now:%Y%m%d_%H%M%S}.csv"
    file_io.write_whole(path, text.getvalue())
    return path
