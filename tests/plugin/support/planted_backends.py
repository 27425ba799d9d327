"""Backends with the bugs that kernels have, one for each of four routines, and one that ends its process.

A module of its own, since the child that launches them imports it too; the package's routines are left alone.
"""

import os
import time
from dataclasses import replace

import torch

from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.routines.gemm.grouped_mm import grouped_mm_bf16
from pytest_flashinfer_perf.routines.gemm.mm_bf16 import mm_bf16
from pytest_flashinfer_perf.routines.moe.cutlass import cutlass_moe
from pytest_flashinfer_perf.spec.routine import Backend, Built


def planted(routine, name, bug):
    """The routine by another name, with one backend: `torch`, where `bug(p, x, honest)` lets it."""

    def build(p, x, how):
        honest = routine.backends["torch"].build(p, x, how).launch
        return Built(lambda x: bug(p, x, honest), name)

    backend = Backend("planted", build, limits=routine.backends["torch"].limits)
    return replace(routine, name=f"planted_{name}", backends={"planted": backend}, aliases={})


def _ragged_tail(p, x, honest):
    """The last row of a group that is no whole tile of 4 rows is not written."""
    honest(x)
    rows = int(x.m_indptr[-1] - x.m_indptr[-2])
    if p.ragged and rows % 4:
        x.out[-1] = float("nan")


def _last_page(p, x, honest):
    """A last page that is partial is not read, if there are others."""
    whole = x.seq_lens // p.page_size * p.page_size
    honest(x._replace(seq_lens=torch.where(whole > 0, whole, x.seq_lens)))


def _gqa_ratio(p, x, honest):
    """Groups of five share the next group's keys."""
    k, v = (side.roll(1, 1) for side in (x.kv.k, x.kv.v))
    honest(x._replace(kv=x.kv._replace(k=k, v=v)) if p.group == 5 else x)


def _idle_expert(p, x, honest):
    """An expert without tokens takes those of the last one away."""
    honest(x)
    counts = torch.bincount(x.selected.flatten().long(), minlength=p.num_experts)
    if bool((counts == 0).any()):
        x.out[x.selected[:, -1] == counts.nonzero()[-1]] = 0


def _abort(p, x, honest):
    if p.batch_size >= 3 and p.s_kv > 60:
        os.abort()
    honest(x)


def _invalid(p, x, honest):
    """Refuses cleanly what is wide, and fails otherwise where it should have."""
    if p.n > 64:
        raise ValueError("n must be at most 64")
    if p.k > 100:
        raise RuntimeError("no kernel for this k")
    honest(x)


def _endless(p, x, honest):
    honest(x)
    time.sleep(60 * (p.m - 1))


ragged_tail = planted(grouped_mm_bf16, "ragged_tail", _ragged_tail)
last_page = planted(decode, "last_page", _last_page)
gqa_ratio = planted(decode, "gqa_ratio", _gqa_ratio)
idle_expert = planted(cutlass_moe, "idle_expert", _idle_expert)
aborting = planted(decode, "aborting", _abort)
endless = planted(mm_bf16, "endless", _endless)
invalid = planted(mm_bf16, "invalid", _invalid)
