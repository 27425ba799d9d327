"""The inputs of a case of an API: the arguments of the call and of `plan`, and which of them the call writes.

A case goes through three stages, each of which adds one value that is never changed afterwards: `make` draws the
inputs (`CallInputs`), a backend's first call shows what it answers and changes (`FirstCall`, by `calling.py`), and the
cost asks the reference (`Prepared`, by `prepare.py`). The two later ones hang on the inputs, which is all that a check
gets.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_flashinfer_perf.api import Target
from pytest_flashinfer_perf.extensions.apis import registry, special_cases
from pytest_flashinfer_perf.extensions.apis.shapes import ApiParams
from pytest_flashinfer_perf.extensions.apis.special_cases import special
from pytest_flashinfer_perf.extensions.apis.templates import Api
from pytest_flashinfer_perf.spec import CannotRunError, Cost, tensors
from pytest_flashinfer_perf.spec.dtypes import TORCH

LONGEST_REASON = 300  # characters


@dataclass(frozen=True)
class FirstCall:
    """What a first call has shown: its outputs and their types, and of changed arguments the shares of changed rows."""

    outputs: Mapping[str, torch.dtype] = field(default_factory=dict)
    changed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """All that a case is checked by, and what its call costs; it is made after the first call, and never changed.

    `reference` is None once a check has taken it. Of a sampler there are the probabilities of its tokens instead.
    `undecided` are elements that rounding may keep or drop.
    """

    cost: Cost
    outputs: tuple[str, ...]  # those that the backend has and the reference knows
    reference: tuple[Tensor, ...] | None
    computed_in: str = "nothing"
    missing: str = ""
    probabilities: Tensor | None = None
    undecided: Tensor | None = None


class Shared:
    """What all copies of a case's inputs share, without copies of its tensors: facts, and the results of two steps.

    The first call sets `first`, the cost sets `prepared`.
    """

    def __init__(
        self, scratch: Mapping[str, Tensor] | None = None, unfilled: Iterable[str] = (), requested: Iterable[str] = ()
    ) -> None:
        self.scratch = dict(scratch or {})  # memory for a call to work in, which is neither read nor an answer
        self.unfilled = frozenset(unfilled)  # arguments that `init` only allocates
        self.requested = frozenset(requested)  # further arguments that the case asks for, as with `--arguments`
        self.first = FirstCall()
        self.prepared: Prepared | None = None


@dataclass(frozen=True)
class CallInputs:
    """The arguments of a call by name, and those of a wrapper's `plan`."""

    call: dict[str, Any]
    plan: dict[str, Any]
    shared: Shared = field(default_factory=Shared, compare=False, repr=False)

    @property
    def called_with(self) -> dict[str, Any]:
        return {**self.call, **self.shared.scratch}

    @property
    def all(self) -> dict[str, Any]:
        return {**self.plan, **self.called_with}

    @property
    def device(self) -> torch.device:
        """A GPU if any of it is there: indices and lengths may stay on the host."""
        devices = [tensor.device for tensor in tensors((self.call, self.plan))]
        return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))

    def copied(self) -> CallInputs:
        """Copy the inputs to other memory, for a call that may change them."""
        copy: CallInputs = Target(lambda _: None, (self,)).at_new_addresses().args[0]
        return copy

    @property
    def changed(self) -> tuple[Tensor, ...]:
        """The tensors of the arguments that the first call has changed."""
        return tuple(tensors([self.call[name] for name in self.shared.first.changed]))


class LiveTemplate(NamedTuple):
    """The function that is called, its owner where that is a wrapper class, and FlashInfer's template object."""

    function: Callable[..., Any]
    owner: type | None
    trace: Any


def live(api: Api) -> LiveTemplate:
    """Import the API's module, which registers its templates, and find this one."""
    function = registry.located(api.path)
    owner = registry.located(api.path.rpartition(".")[0])
    trace = registry.registered()[api.path, api.label][1]
    return LiveTemplate(function, owner if isinstance(owner, type) else None, trace)


def make(api: Api, params: ApiParams, device: str, seed: int) -> CallInputs:
    axes = params.axes
    enough = {name: max(axes[name], axes[of]) for name, of in special(api).at_least.items()}
    unused = {name: axes.get(name.removesuffix(special_cases.ONE_MORE), 0) + 1 for name in api.unused}
    try:
        with _Unfilled() as unfilled:
            drawn = dict(live(api).trace.init(**{**axes, **enough}, **unused, device=device, seed=seed))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise CannotRunError(f"its template makes no such inputs: {in_a_sentence(error)}") from error
    call, plan = (drawn["run"], drawn["plan"]) if set(drawn) == {"plan", "run"} else (drawn, {})
    allocated = {name for name, value in call.items() if unfilled.holds(value)}
    typed = _of_dtype({**call, **_as_taken(api, call), **_output_dtype(api, call)}, params.dtype, allocated)
    further = {**special(api).arguments, **params.further_arguments}
    arguments = _with_arguments(api, {**_left_out(api, axes, call), **_uniform(typed)}, further)
    memory = {name for name in arguments if any(word in name for word in special_cases.SCRATCH)}
    scratch = {name: value for name, value in arguments.items() if name in memory and isinstance(value, Tensor)}
    kept = {name: value for name, value in arguments.items() if name not in scratch}
    return CallInputs(kept, dict(plan), Shared(scratch, allocated, params.further_arguments))


class _Unfilled(TorchDispatchMode):
    """Note the addresses of memory that is allocated and that no operator has used since."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.addresses: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.addresses -= {tensor.data_ptr() for tensor in tensors((args, kwargs, returned))}
        self.addresses |= {tensor.data_ptr() for tensor in tensors(returned) if "empty" in func.name()}
        return returned

    def holds(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.data_ptr() in self.addresses


def _left_out(api: Api, axes: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that the call requires and `init` leaves out: the axis of that name, or None where that is allowed."""
    taken = inspect.signature(live(api).function).parameters.values()
    absent = [p for p in taken if p.default is p.empty and p.name not in call]
    optional = [p for p in absent if any(word in str(p.annotation) for word in ("Optional[", "None"))]
    return {p.name: axes.get(p.name) for p in absent if p.name in axes or p in optional}


def _as_taken(api: Api, call: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that the API takes in another layout or type than `init` makes them."""
    forms = special(api).taken_as
    by_columns = {name: _by_columns(call[name]) for name, how in forms.items() if how == special_cases.BY_COLUMNS}
    return {**{name: call[name].to(TORCH[how]) for name, how in forms.items() if how in TORCH}, **by_columns}


def _by_columns(rows: Tensor) -> Tensor:
    """Store each column in one piece, of a multiple of 4 numbers, as kernels read scales."""
    count = rows.shape[-2]
    held = rows.new_zeros(*rows.shape[:-2], rows.shape[-1], -(-count // 4) * 4)
    held[..., :count] = rows.mT
    return held.mT[..., :count, :]


def _output_dtype(api: Api, call: Mapping[str, Any]) -> dict[str, torch.dtype]:
    """The output's declared type as `dtype`, if `init` makes a number of it: no API takes a number for a type."""
    stated = [TORCH[output.dtype] for output in api.outputs if output.dtype in TORCH]
    return {"dtype": stated[0]} if stated and isinstance(call.get("dtype"), int) else {}


def _uniform(call: Mapping[str, Any]) -> dict[str, Any]:
    """Draw probabilities as upstream's script does, since they decide a sampler's time: uniform numbers over their sum.

    `init`, which makes a softmax of normal numbers, has seeded torch's generator.
    """
    own = {name: value for name, value in call.items() if name in special_cases.PROBABILITIES}
    drawn = {name: torch.rand(value.shape, device=value.device) for name, value in own.items()}
    return {**call, **{name: (x / x.sum(-1, keepdim=True)).to(own[name].dtype) for name, x in drawn.items()}}


def _of_dtype(call: Mapping[str, Any], dtype: str | None, unfilled: Collection[str]) -> dict[str, Any]:
    """Cast the first input tensor, and the others of its type: of four bytes and more it is cast alone.

    Of such types the others may be scales. What `init` only allocates is not the first input.
    """
    first = next(tensors([value for name, value in call.items() if name not in unfilled]), None)
    if dtype is None or first is None:
        return dict(call)

    def cast(value: Any) -> Any:
        alike = isinstance(value, Tensor) and value.dtype == first.dtype
        return value.to(TORCH[dtype]) if alike and (value is first or first.itemsize < 4) else value

    return {name: cast(value) for name, value in call.items()}


def _with_arguments(api: Api, call: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(live(api).function).parameters
    unknown = [name for name in arguments if name not in parameters]
    if unknown:
        raise CannotRunError(f"{api.path} has no argument {unknown[0]}")
    return {
        **call,
        **{name: _in_its_form(call.get(name), value, parameters[name]) for name, value in arguments.items()},
    }


def _in_its_form(drawn: object, value: Any, parameter: inspect.Parameter) -> object:
    """The number itself, as upstream's script gives it; `init`'s tensor filled with it for a scale, or if the API takes
    no number."""
    takes_numbers = (
        re.search(r"\b(int|float)\b", str(parameter.annotation)) and parameter.name not in special_cases.SCALES
    )
    return drawn.fill_(value) if isinstance(drawn, Tensor) and not takes_numbers else value


def in_a_sentence(error: Exception) -> str:
    """The error in one line: what a library knows of the cause may stand in a later line of its own."""
    return textwrap.shorten(f"{type(error).__name__}: {error}".removesuffix(": "), LONGEST_REASON, placeholder=" ...")


def first_call(inputs: CallInputs, trial: CallInputs, outputs: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Note what a call on the copy `trial` has shown; `outputs` names them, once it is known what the call changed.

    The first one counts: one that is built again later may find inputs that hold the answer, and change less.
    """
    if inputs.shared.first.outputs:
        return outputs()
    pairs = {name: zip(tensors(value), tensors(trial.call[name]), strict=True) for name, value in inputs.call.items()}
    shares = {name: tuple(_changed_rows(*pair) for pair in of_tensors) for name, of_tensors in pairs.items()}
    changed = {name: of_tensors for name, of_tensors in shares.items() if any(of_tensors)}
    inputs.shared.first = FirstCall(changed=changed)
    named = outputs()
    inputs.shared.first = FirstCall({name: tensor.dtype for name, tensor in named.items()}, changed)
    return named


def _changed_rows(before: Tensor, after: Tensor) -> float:
    """The share of rows with at least one other byte."""
    width = before.shape[-1] if before.ndim else 1
    rows = (tensor.contiguous().view(-1, max(1, width)).view(torch.uint8) for tensor in (before, after))
    return float(torch.ne(*rows).any(-1).double().mean()) if before.numel() else 0.0


def written(api: Api, inputs: CallInputs) -> dict[str, Any]:
    """The arguments that the call writes: those that the template lists, and others that it was seen to change."""
    named = {o.name: inputs.call[o.argument] for o in api.outputs if list(tensors(inputs.call.get(o.argument)))}
    listed = {output.argument for output in api.outputs}
    return {**named, **{name: inputs.call[name] for name in inputs.shared.first.changed if name not in listed}}


def write_only(api: Api, inputs: CallInputs) -> tuple[Tensor, ...]:
    """The arguments that hold the whole answer and nothing that is read; none where any output is another one.

    What is read are the inputs that the template lists; one by hand lists none, and its reference names what it reads.
    """
    read = {one.argument for one in api.inputs} or set(inspect.signature(live(api).trace.reference).parameters)
    names = [o.argument for o in api.outputs if o.argument not in read or o.argument in special_cases.WRITE_ONLY]
    whole = len(names) == len(api.outputs) and set(names) == set(inputs.shared.first.changed)
    held = [inputs.call.get(name) for name in names]
    return tuple(one for one in held if isinstance(one, Tensor)) if whole else ()


def answers(api: Api, inputs: CallInputs, returned: object) -> dict[str, Tensor]:
    """What a call has answered, by the names of the template's outputs: returned, or written to its arguments.

    A call returns either all outputs or those that it does not write to an argument. If it returns None, an output that
    is no argument is taken from the first changed argument that the template does not list as an output.
    """
    parts = tuple(returned.values()) if isinstance(returned, dict) else returned
    results = [one for one in (parts if isinstance(parts, (tuple, list)) else (parts,)) if one is not None]
    names, in_place = [output.name for output in api.outputs], written(api, inputs)
    expected = names if len(results) == len(names) else [name for name in names if name not in in_place]
    by_name = dict(zip(expected, results, strict=False))
    nameless = [name for name in in_place if name not in names]
    named: dict[str, object] = {}
    for name in names:
        if name in in_place:
            named[name] = in_place[name]
        elif name in by_name:
            named[name] = by_name[name]
        elif returned is None and nameless:
            named[name] = in_place.pop(nameless.pop(0))
    return {name: tensor for name, tensor in flat({**named, **in_place}) if tensor.numel()}


def flat(named: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
    for name, value in named.items():
        leaves = list(tensors(value))
        yield from ((name if len(leaves) == 1 else f"{name}[{nth}]", tensor) for nth, tensor in enumerate(leaves))
