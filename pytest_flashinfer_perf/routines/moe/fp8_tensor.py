"""trtllm_fp8_per_tensor_scale_moe: routing and experts in one call, in FP8 with a scale for each expert's weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from pytest_flashinfer_perf.checking.check import Tolerance
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe import _shared, _stored, _trtllm
from pytest_flashinfer_perf.routines.moe._shared import Precision
from pytest_flashinfer_perf.routines.moe._stored import Fp8
from pytest_flashinfer_perf.routines.moe._trtllm import TrtllmMoe, TrtllmMoeInputs
from pytest_flashinfer_perf.spec.dtypes import FP8
from pytest_flashinfer_perf.spec.params import Fault, flag
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

API = "fused_moe.trtllm_fp8_per_tensor_scale_moe"


@dataclass(frozen=True)
class TrtllmFp8PerTensorScaleMoe(TrtllmMoe):
    use_routing_scales_on_input: bool = flag(
        "llama4: apply routing weights to the inputs of experts", default=False, letter="oninput"
    )

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.use_routing_scales_on_input and self.routing_method != "llama4":
            yield "use_routing_scales_on_input", f"is for --routing_method llama4, not {self.routing_method}"

    @property
    def weighs_input(self) -> bool:
        return self.use_routing_scales_on_input


def inputs(p: TrtllmFp8PerTensorScaleMoe, rand: torch.Generator, _device: torch.device) -> TrtllmMoeInputs[Fp8]:
    logits = torch.bfloat16 if p.routing_method == "llama4" else torch.float32
    return _trtllm.inputs(p, _stored.in_fp8(*_trtllm.drawn(p, rand)), logits, rand)


def precision(_p: TrtllmFp8PerTensorScaleMoe) -> Precision:
    return Precision(FP8[0], 1.0, 1.0, Tolerance(2e-2, 8e-2, 1.5e-2))


fp8_tensor = _shared.routine(
    "trtllm_fp8_per_tensor_scale_moe", TrtllmFp8PerTensorScaleMoe, inputs, _trtllm.choices, precision
)


def _limits(p: TrtllmFp8PerTensorScaleMoe, backend: str, _device: Device) -> Iterator[str]:
    yield from _trtllm.activation_limits(p, backend, API)
    yield from _trtllm.only_major_k(p, backend)
    yield from _trtllm.limits(p, backend)


@fp8_tensor.backend("trtllm", api=API, limits=_limits, tunes=True)
def _launcher(
    p: TrtllmFp8PerTensorScaleMoe, x: TrtllmMoeInputs[Fp8], _options: LaunchOptions
) -> Built[TrtllmMoeInputs[Fp8]]:
    from flashinfer.fused_moe import trtllm_fp8_per_tensor_scale_moe

    activation = _trtllm.activation(p)

    def launch(x: TrtllmMoeInputs[Fp8]) -> object:
        return trtllm_fp8_per_tensor_scale_moe(
            **_trtllm.arguments(p, x),
            output1_scales_scalar=x.stored.between,
            output1_scales_gate_scalar=x.stored.by_first,
            output2_scales_scalar=x.stored.by_second,
            use_routing_scales_on_input=p.use_routing_scales_on_input,
            activation_type=activation,
        )

    return Built(launch, "trtllm", replace(x, stored=_as_passed(p, x.stored)))


def _as_passed(p: TrtllmFp8PerTensorScaleMoe, stored: Fp8) -> Fp8:
    first = _trtllm.first_rows(p, stored.first.view(torch.uint8)).view(stored.first.dtype)
    second = _narrow.shuffled_rows(stored.second.view(torch.uint8)).view(stored.second.dtype)
    return stored._replace(first=first, second=second, between=_trtllm.to_between(p, stored))


_trtllm.declare_shapes(
    fp8_tensor,
    TrtllmFp8PerTensorScaleMoe(**_trtllm.SMOKE),
    smoke=(
        {"activation_type": "Geglu"},
        {"activation_type": "Relu2"},
        {**_trtllm.UNGROUPED, **_trtllm.LLAMA4, "use_routing_scales_on_input": True},
    ),
)
