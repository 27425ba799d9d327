"""MoE layers of the trtllm routines: a small one of each, and how tokens choose experts, on Python's numbers."""

import math

from on_cpu import OnCpu

from pytest_flashinfer_perf.routines.moe.cutlass import cutlass_moe
from pytest_flashinfer_perf.routines.moe.fp4_block import TrtllmFp4BlockScaleMoe, fp4_block
from pytest_flashinfer_perf.routines.moe.trtllm_fp8 import (
    TrtllmFp8BlockScaleMoe,
    TrtllmFp8PerTensorScaleMoe,
    fp8_block,
    fp8_tensor,
)

ROUTINES = {
    TrtllmFp4BlockScaleMoe: fp4_block,
    TrtllmFp8BlockScaleMoe: fp8_block,
    TrtllmFp8PerTensorScaleMoe: fp8_tensor,
}
SIZES = {"num_tokens": 33, "hidden_size": 128, "intermediate_size": 128, "num_experts": 8, "top_k": 2}
METHOD = {"routing_method": "renormalize"}
PLAIN = {params: params(**SIZES, **METHOD) for params in ROUTINES}
KINDS = dict(zip(("nvfp4", "blocks", "tensor"), PLAIN.values(), strict=True)) | {
    mode: TrtllmFp4BlockScaleMoe(**SIZES, **METHOD, fp4_mode=mode) for mode in ("mxfp4_mxfp8", "mxfp4_bf16")
}


def run_of(p):
    return OnCpu(ROUTINES.get(type(p), cutlass_moe))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def by_hand(p, logits, bias):
    """One token's experts with their weights, as the methods are described, on Python's numbers."""
    if p.routing_method != "deepseek_v3":
        best = sorted(range(len(logits)), key=lambda e: -logits[e])[: p.top_k]
        if p.routing_method == "topk":
            return {e: logits[e] for e in best}
        if p.routing_method == "llama4":
            return {e: sigmoid(logits[e]) for e in best}
        whole = sum(math.exp(logits[e]) for e in (best if p.routing_method == "renormalize" else range(len(logits))))
        shares = {e: math.exp(logits[e]) / whole for e in best}
        return {e: share / sum(shares.values()) for e, share in shares.items()}
    ranked = {e: sigmoid(logit) + (bias[e] if bias else 0.0) for e, logit in enumerate(logits)}
    size = len(logits) // p.groups
    best_two = {g: sum(sorted(ranked[e] for e in range(g * size, g * size + size))[-2:]) for g in range(p.groups)}
    kept = sorted(best_two, key=lambda g: -best_two[g])[: p.kept_groups]
    best = sorted((e for e in ranked if e // size in kept), key=lambda e: -ranked[e])[: p.top_k]
    whole = sum(sigmoid(logits[e]) for e in best)
    return {e: p.routed_scaling_factor * sigmoid(logits[e]) / whole for e in best}
