"""The kernels of feed-forward layers, dense or with experts, on one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pytest_flashinfer_perf.models import kernel
from pytest_flashinfer_perf.models.deployment import Step
from pytest_flashinfer_perf.models.description import Dense, Experts
from pytest_flashinfer_perf.models.kernel import Problem, ProductWeights, called, problem, product
from pytest_flashinfer_perf.models.quantisation import COLUMNS, Stored
from pytest_flashinfer_perf.rows.step import StepKernel
from pytest_flashinfer_perf.spec.presets import shared

FP4 = ("nvfp4", "mxfp4")
CUTLASS = "cutlass_fused_moe"
VARIANTS = {"bf16": "base", "fp8": "fp8", "fp8_blocks": "deepseek_fp8_block_scale", "nvfp4": "nvfp4"}
TRTLLM: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "fp8": ("trtllm_fp8_per_tensor_scale_moe", {}),
    "fp8_blocks": ("trtllm_fp8_block_scale_moe", {}),
    "nvfp4": ("trtllm_fp4_block_scale_moe", {"fp4_mode": "nvfp4"}),
    "mxfp4": ("trtllm_fp4_block_scale_moe", {"fp4_mode": "mxfp4_bf16"}),
}


def dense(layer: Dense, hidden: int, stored: str, step: Step, prefix: str = "") -> Iterator[StepKernel]:
    width = shared(layer.width, step.spread.tp, "columns of a feed-forward layer")
    first = "gate-up" if layer.gated else "up"
    yield product(f"{prefix}{first}", step.tokens, ProductWeights(width * (1 + layer.gated), hidden, stored))
    yield kernel.activation(layer, width, step, prefix)
    yield product(f"{prefix}down", step.tokens, ProductWeights(hidden, width, stored))


def experts(layer: Experts, hidden: int, stored: Stored, step: Step) -> Iterator[StepKernel]:
    """The router is replicated; a shared expert is a dense layer."""
    yield product("router", step.tokens, ProductWeights(layer.count, hidden, bias=layer.biases))
    if layer.shared is not None:
        yield from dense(layer.shared, hidden, stored.dense, step, "shared-")
    yield _routed(layer, hidden, stored.experts, step)
    extra = layer.count * layer.routing.biased + hidden * layer.shared_gate
    if extra:
        yield kernel.gap("routing bias and gate of the shared expert", "part of no case", parameters=extra)


def _routed(layer: Experts, hidden: int, stored: str, step: Step) -> StepKernel:
    width = shared(layer.width, step.spread.tp, "columns of an expert")
    here = shared(layer.count, step.spread.ep, "experts")
    matrices = 3 if layer.gated else 2
    biases = (2 * layer.width + hidden) * layer.biases
    parameters = (matrices * hidden * layer.width + biases) // step.spread.tp * here
    flops = 2.0 * step.routed_tokens * layer.chosen * matrices * hidden * width / step.spread.ep
    uneven = [columns for columns in (hidden, width) if columns % COLUMNS[stored]]
    if uneven and stored in FP4:
        return kernel.gap("experts", kernel.cut(stored, uneven[0]), parameters=parameters, flops=flops, stored=stored)
    routed = called("experts", tuple(_calls(layer, hidden, stored, step)), parameters, flops, stored)
    return replace(routed, note="without the biases of the experts" if layer.biases else "")


def _calls(layer: Experts, hidden: int, stored: str, step: Step) -> Iterator[Problem]:
    if stored in VARIANTS:
        yield problem(CUTLASS, {**_sizes(layer, hidden, layer.width, step), **_cutlass(stored, step)})
    if stored in TRTLLM:
        routine, more = TRTLLM[stored]
        width = layer.width // step.spread.tp
        yield problem(routine, {**_sizes(layer, hidden, width, step), **_trtllm(layer, step), **more})


def _sizes(layer: Experts, hidden: int, width: int, step: Step) -> dict[str, Any]:
    return {
        "num_tokens": step.routed_tokens,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_experts": layer.count,
        "top_k": layer.chosen,
        "activation_type": layer.activation,
    }


def _cutlass(stored: str, step: Step) -> dict[str, Any]:
    """It takes the experts that were chosen, however they were."""
    return {"cutlass_variant": VARIANTS[stored], "tp_size": step.spread.tp, "ep_size": step.spread.ep}


def _trtllm(layer: Experts, step: Step) -> dict[str, Any]:
    routing = layer.routing
    scaling = {} if routing.scaling is None else {"routed_scaling_factor": routing.scaling}
    return {
        "local_num_experts": layer.count // step.spread.ep,
        "routing_method": routing.method,
        "n_group": routing.groups,
        "topk_group": routing.groups_chosen,
        "use_routing_bias": routing.biased,
        **scaling,
    }
