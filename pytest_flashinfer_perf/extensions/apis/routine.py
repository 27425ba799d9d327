"""A `Routine` made from an API's template instead of a file of its own.

`of` puts together what the other modules here derive: flags and tiers, inputs, backends, the answer and its cost. What
an API needs to run, and the memory that it takes, are estimated below before anything is called.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.api import Device, capability
from pytest_flashinfer_perf.extensions.apis import call_inputs, calling, prepare, registry, samplers, shapes, truth
from pytest_flashinfer_perf.extensions.apis.call_inputs import CallInputs, Prepared
from pytest_flashinfer_perf.extensions.apis.shapes import ApiParams
from pytest_flashinfer_perf.extensions.apis.special_cases import ONE_RANK, special
from pytest_flashinfer_perf.extensions.apis.templates import Api
from pytest_flashinfer_perf.spec import Backend, CannotRunError, Cost, Params, Routine, Tolerance
from pytest_flashinfer_perf.spec.nested import has_both_signs, tensors


@dataclass
class ApiRoutine(Routine[Any, CallInputs]):
    """A routine whose outputs are decoded before they are compared, and compared where the reference has values."""

    api: Api = field(kw_only=True)
    named_by = ("--api",)
    tunes_by_flag = True
    graph_if_possible = True

    @property
    def mark(self) -> str:
        return "api"

    def read(self, _params: Any, inputs: CallInputs, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        prepared = _prepared(inputs)
        if prepared.probabilities is not None:
            return (samplers.excess(outputs[0], prepared.probabilities),)
        # A reference that changes its inputs returns them, too.
        named = dict(zip(inputs.shared.first.outputs, outputs, strict=False))
        return tuple(
            truth.meant(self.api, name, named[name], inputs.all, prepared.undecided) for name in prepared.outputs
        )

    def allowed(self, _params: Any, inputs: CallInputs, _backend: str) -> tuple[Tolerance, ...]:
        prepared, types = _prepared(inputs), inputs.shared.first.outputs
        if prepared.probabilities is not None:
            return (samplers.ALLOWED,)
        return tuple(truth.tolerance(self.api, name, types[name]) for name in prepared.outputs)

    def described(self, _params: Any, inputs: CallInputs, _bounds: tuple[Tolerance, ...]) -> Mapping[str, Any]:
        prepared, own = _prepared(inputs), special(self.api)
        unmentioned = [name for name in inputs.shared.first.outputs if name not in prepared.outputs]
        silent = f"it says nothing of {', '.join(unmentioned)}" if unmentioned and prepared.outputs else None
        return {
            "derived": True,
            "reference": prepared.computed_in,
            "no_reference": prepared.missing or None,
            "weak_reference": own.weak or own.why_not_compared or silent,
        }

    def changed(self, inputs: CallInputs) -> tuple[Tensor, ...]:
        return () if call_inputs.write_only(self.api, inputs) else inputs.changed


def of(api: Api) -> ApiRoutine:
    params = shapes.params_of(api)
    routine = ApiRoutine(
        api.name,
        family=api.family,
        params=params,
        inputs=lambda p, rand, device: call_inputs.make(api, p, str(device), rand.initial_seed()),
        outputs=partial(call_inputs.write_only, api),
        reference=partial(_reference, api),
        cost=partial(_cost, api),
        tolerances=lambda _p, _backend: (),
        footprint=partial(footprint, api),
        cuda_graph=True,
        activations=partial(_activations, api),
        tiers={tier: partial(shapes.of_tier, api, params, tier) for tier in ("smoke", "default")},
        api=api,
    )
    presets = shapes.presets(api)
    if presets:
        routine.sweep(presets)(partial(shapes.of_model, api, params))
    else:
        routine.tiers["full"] = routine.tiers["default"]
    routine.backends.update((backend.name, backend) for backend in _backends(api))
    if len(api.backends) == 1:  # what `flashinfer_benchmark.py` calls the one way there is
        routine.aliases = dict.fromkeys({"flashinfer", "cuda"} - set(api.backends), api.backends[0])
    return routine


def _backends(api: Api) -> Iterator[Backend[Any, CallInputs]]:
    for name in api.backends:
        needs = requirements(api, name)
        yield Backend(name, lambda _p, x, how: calling.by_flashinfer(api, x, how), api.below, needs)
    needs = (capability.flashinfer(),)
    yield Backend("torch", lambda _p, x, how: calling.by_reference(api, x, how), "", needs, on_a_cpu)


def _cost(api: Api, _params: Params, x: CallInputs) -> Cost:
    """The reference is asked now: its products are the FLOPs."""
    x.shared.prepared = prepare.prepared(api, x)
    return x.shared.prepared.cost


def _reference(api: Api, _params: Params, x: CallInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    """The answer that was prepared with the cost, which is taken once; then that to the inputs as they are by then."""
    prepared = _prepared(x)
    if prepared.reference is None:
        prepared = prepare.prepared(api, x)
    x.shared.prepared = replace(prepared, reference=None)
    return prepared.reference or ()


def _prepared(x: CallInputs) -> Prepared:
    if x.shared.prepared is None:
        raise RuntimeError("the cost of a case is asked for before its reference: it prepares both")
    return x.shared.prepared


def _activations(api: Api, x: CallInputs) -> Tensor:
    """The largest input with numbers of both signs: what has one may be a probability, a scale or a variance.

    Weights come last: an API may keep what it made of them (`mono_moe` keeps its interleaved rows on the tensor).
    """
    aside = {output.argument for output in api.outputs}
    candidates = [(name, t) for name, value in x.call.items() if name not in aside for t in tensors(value)]
    signed = [(name, t) for name, t in candidates if t.is_floating_point() and t.numel() and has_both_signs(t)]
    largest = max(signed, key=lambda one: ("weight" not in one[0], one[1].numel()), default=("", torch.empty(0)))
    return largest[1]


# Where an API can run, from its own decorators; without any, the library's error is the reason of the skip.


def requirements(api: Api, backend: str) -> tuple[capability.Requirement, ...]:
    packages = (capability.package(module, name, backend) for module, name in capability.PACKAGES.get(backend, ()))
    compilers = (capability.tile_compiler,) if backend == "cutile" else ()
    # Of APIs without a decorator, whose kernels would be downloaded before they are refused.
    runs_as = special(api).runs_as
    hardware = (capability.compute_capability(api.path, *capability.HARDWARE[runs_as]),) if runs_as else ()

    def several_gpus(_device: Device) -> str | None:
        alone = special(api).weak == ONE_RANK
        return f"{api.path} exchanges data between GPUs, and its template makes one rank alone" if alone else None

    of_api = (capability.gpu(api.path), several_gpus, *hardware, capability.flashinfer())
    return (*of_api, *packages, *compilers, declared(api, backend))


def declared(api: Api, backend: str) -> capability.Requirement:
    def require(device: Device) -> str | None:
        try:
            function = registry.located(api.path)
        except (ImportError, AttributeError) as error:
            return f"{api.path} cannot be imported: {error}"
        if device.capability is None:
            return None
        here = device.capability[0] * 10 + device.capability[1]
        chosen = backend not in (registry.ONLY, "auto") and getattr(function, "has_backend_choices", bool)()
        with suppress(AttributeError, ValueError):  # one that declares nothing of this
            arguments = (backend, here) if chosen else (here,)
            ask = function.is_backend_supported if chosen else function.is_compute_capability_supported
            if not ask(*arguments):
                subject = f"{api.path} with backend {backend}" if chosen else api.path
                where = ".".join(map(str, device.capability))
                return f"flashinfer declares no support of {subject} on compute capability {where}"
        return None

    return require


def on_a_cpu(_params: Params, _backend: str, device: Device) -> Iterator[str]:
    if device.is_gpu:
        yield "torch is the template's reference, which is timed on a CPU only"


# Estimate the memory that a case of an API needs, before any is allocated.

# The inputs, copies of them in wider types, and what the reference makes on its way.
TIMES = 8


@functools.cache
def footprint(api: Api, params: ApiParams) -> int:
    """Estimate the bytes from inputs on torch's meta device, or from the template where its `init` looks at values."""
    try:
        drawn = call_inputs.make(api, params, "meta", 0)
        return TIMES * sum(tensor.nbytes for tensor in tensors(drawn.all))
    except CannotRunError:
        return TIMES * sum(_declared(one.dims, params.axes) for one in (*api.inputs, *api.outputs))


def _declared(dims: tuple[str, ...], axes: Mapping[str, Any]) -> int:
    """Bytes at four for each element: of the known axes, or of the longest one if none of these is known."""
    sizes = {name: int(size) for name, size in axes.items() if isinstance(size, (int, float))}
    longest = max(sizes.values(), default=1)
    stated = [sizes[name] for name in dims if name in sizes]
    return 4 * math.prod(stated or [longest]) if dims else 0
