"""Calls of one's own, measured quickly on the CPU."""

import torch

from pytest_flashinfer_perf import Measuring, measure

FEW = Measuring(iters=3, warmup=1, cold_l2="none")


def seen(fn, *args, **how):
    return measure(fn, args, measuring=how.pop("measuring", FEW), device="cpu", **how)


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)
