"""The inputs of a case of an API: the arguments of the call and of `plan`, and which of them the call writes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_flashinfer_perf.routines.derived import exceptions, registry
from pytest_flashinfer_perf.routines.derived.registry import ONE_MORE
from pytest_flashinfer_perf.routines.derived.shapes import PROBABILITIES, ApiParams
from pytest_flashinfer_perf.routines.derived.templates import Api, Declared
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.spec.routine import CannotRunError

SCRATCH = ("workspace", "semaphore")
# Arguments of these names are written and not read, also where a template lists them among its inputs.
WRITE_ONLY = ("out", "output", "topk_values", "topk_indices")


class Kept:
    """What is known of a case besides its inputs. All copies of the inputs share it, without a copy of its tensors."""

    def __init__(self) -> None:
        self.answer: dict[str, Tensor] = {}
        self.computed_in = "nothing"
        self.missing = ""
        self.probabilities = torch.empty(0)  # of a sampler's tokens
        self.drafts: Tensor | None = None  # a draft's tokens, which that sampler accepts or replaces
        self.undecided: Tensor | None = None  # elements of the answer that rounding may keep or drop
        self.flops = 0
        self.is_new = False  # the answer was computed with the cost, and no check has used it yet
        self.dtypes: dict[str, torch.dtype] = {}
        self.changed: dict[str, tuple[float, ...]] = {}  # arguments, and of their tensors the share of changed rows
        self.unfilled: frozenset[str] = frozenset()  # arguments that `init` only allocates
        self.written: set[str] = set()  # outputs that the reference is known to make
        self.scratch: dict[str, Tensor] = {}  # memory for a call to work in, which is neither read nor an answer
        self.arguments: frozenset[str] = frozenset()  # further arguments that the case asks for, as with `--arguments`

    @property
    def compared(self) -> list[str]:
        """The outputs that the backend has and the reference knows."""
        return [name for name in self.dtypes if name in self.answer]


@dataclass
class Given:
    """The arguments of a call by name, and those of a wrapper's `plan`."""

    call: dict[str, Any]
    plan: dict[str, Any]
    kept: Kept = field(default_factory=Kept, compare=False, repr=False)

    @property
    def called_with(self) -> dict[str, Any]:
        return {**self.call, **self.kept.scratch}

    @property
    def all(self) -> dict[str, Any]:
        return {**self.plan, **self.called_with}


class Template(NamedTuple):
    """The function that is called, its owner where that is a wrapper class, and FlashInfer's template object."""

    function: Callable[..., Any]
    owner: type | None
    trace: Any


def live(api: Api) -> Template:
    """Import the API's module, which registers its templates, and find this one."""
    function = registry.located(api.path)
    owner = registry.located(api.path.rpartition(".")[0])
    trace = registry.registered()[api.path, api.label][1]
    return Template(function, owner if isinstance(owner, type) else None, trace)


def make(api: Api, params: ApiParams, device: str, seed: int) -> Given:
    axes = params.axes
    unused = {name: axes.get(name.removesuffix(ONE_MORE), 0) + 1 for name in api.unused}
    try:
        with _Unfilled() as unfilled:
            made = dict(live(api).trace.init(**axes, **unused, device=device, seed=seed))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise CannotRunError(f"its template makes no such inputs: {in_a_sentence(error)}") from error
    call, plan = (made["run"], made["plan"]) if set(made) == {"plan", "run"} else (made, {})
    further = {**exceptions.ARGUMENTS.get(api.label, {}), **params.given_arguments}
    laid_out = {**call, **_as_taken(api, call), **_output_dtype(api, call)}
    allocated = frozenset(name for name, value in call.items() if unfilled.holds(value))
    typed = _of_dtype(laid_out, params.dtype, allocated)
    drawn = _uniform(api, typed) if params.probabilities else typed
    arguments = _with_arguments(api, {**_left_out(api, axes, call), **drawn}, further)
    scratch = {name: value for name, value in arguments.items() if _is_scratch(name, value)}
    given = Given({name: value for name, value in arguments.items() if name not in scratch}, dict(plan))
    given.kept.arguments, given.kept.scratch = frozenset(params.given_arguments), scratch
    given.kept.unfilled = allocated
    return given


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
    return {p.name: axes.get(p.name) for p in absent if p.name in axes or _may_be_none(p)}


def _may_be_none(parameter: inspect.Parameter) -> bool:
    return any(word in str(parameter.annotation) for word in ("Optional[", "None"))


def _as_taken(api: Api, call: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that the API takes in another layout or type than `init` makes them."""
    wanted = exceptions.by_part(exceptions.TAKEN_AS, api.label) or {}
    return {name: _taken_as(call[name], how) for name, how in wanted.items()}


def _taken_as(tensor: Tensor, how: str) -> Tensor:
    return tensor.mT.contiguous().mT if how == exceptions.BY_COLUMNS else tensor.to(TORCH[how])


def _output_dtype(api: Api, call: Mapping[str, Any]) -> dict[str, torch.dtype]:
    """The output's declared type as `dtype`, if `init` makes a number of it: no API takes a number for a type."""
    stated = [TORCH[output.dtype] for output in api.outputs if output.dtype in TORCH]
    return {"dtype": stated[0]} if stated and isinstance(call.get("dtype"), int) else {}


def _uniform(api: Api, call: Mapping[str, Any]) -> dict[str, Any]:
    """With other probabilities of the same shape and type; `init` has seeded torch's generator."""
    own = {name: value for name, value in call.items() if name in PROBABILITIES}
    if not own:
        raise CannotRunError(f"{api.path} is given no probabilities: leave out --probabilities")
    drawn = {name: torch.rand(value.shape, device=value.device) for name, value in own.items()}
    return {**call, **{name: (x / x.sum(-1, keepdim=True)).to(own[name].dtype) for name, x in drawn.items()}}


def _is_scratch(name: str, value: Any) -> bool:
    return isinstance(value, Tensor) and any(word in name for word in SCRATCH)


def _of_dtype(call: Mapping[str, Any], dtype: str | None, unfilled: frozenset[str]) -> dict[str, Any]:
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
    taken = inspect.signature(live(api).function).parameters
    strange = [name for name in arguments if name not in taken]
    if strange:
        raise CannotRunError(f"{api.path} has no argument {strange[0]}")
    return {**call, **{name: _as_asked(call.get(name), value, taken[name]) for name, value in arguments.items()}}


def _as_asked(made: object, value: Any, parameter: inspect.Parameter) -> object:
    """The number itself, as upstream's script gives it; `init`'s tensor filled with it if the API takes no number."""
    takes_numbers = re.search(r"\b(int|float)\b", str(parameter.annotation))
    return made.fill_(value) if isinstance(made, Tensor) and not takes_numbers else value


def in_a_sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def note_changes(given: Given, trial: Given) -> None:
    """Note which arguments a call has changed, by the copy `trial` on which it was made."""
    shares = {
        name: tuple(map(_changed_rows, tensors(value), tensors(trial.call[name]))) for name, value in given.call.items()
    }
    given.kept.changed = {name: of_tensors for name, of_tensors in shares.items() if any(of_tensors)}


def _changed_rows(before: Tensor, after: Tensor) -> float:
    """The share of rows with at least one other byte."""
    width = before.shape[-1] if before.ndim else 1
    rows = (tensor.contiguous().view(-1, max(1, width)).view(torch.uint8) for tensor in (before, after))
    return float(torch.ne(*rows).any(-1).double().mean()) if before.numel() else 0.0


def device_of(given: Given) -> torch.device:
    """A GPU if any of it is there: indices and lengths may stay on the host."""
    devices = [tensor.device for tensor in tensors((given.call, given.plan))]
    return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))


def changed(given: Given) -> tuple[Tensor, ...]:
    return tuple(tensors([given.call[name] for name in given.kept.changed]))


def written(api: Api, given: Given) -> dict[str, Any]:
    """The arguments that the call writes: those that the template lists, and others that it was seen to change."""
    named = {o.name: given.call[o.argument] for o in api.outputs if list(tensors(given.call.get(o.argument)))}
    known = {output.argument for output in api.outputs}
    return {**named, **{name: given.call[name] for name in given.kept.changed if name not in known}}


def write_only(api: Api, given: Given) -> tuple[Tensor, ...]:
    """The arguments that hold the whole answer and nothing that is read; none where any output is another one."""
    read = {one.argument for one in api.inputs}
    names = [o.argument for o in api.outputs if o.argument not in read or o.argument in WRITE_ONLY]
    whole = len(names) == len(api.outputs) and set(names) == set(given.kept.changed)
    held = [given.call.get(name) for name in names]
    return tuple(one for one in held if isinstance(one, Tensor)) if whole else ()


def answers(api: Api, given: Given, returned: object) -> dict[str, Tensor]:
    """What a call has answered, by the names of the template's outputs: returned, or written to its arguments.

    A call returns either all outputs or those that it does not write to an argument. If it returns None, an output that
    is no argument is taken from the first changed argument that the template does not list as an output.
    """
    names = [output.name for output in api.outputs]
    results, in_place = list(_top(returned)), written(api, given)
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


def _top(returned: object) -> Iterator[object]:
    if isinstance(returned, dict):
        returned = tuple(returned.values())
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    yield from (part for part in parts if part is not None)


def flat(named: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
    for name, value in named.items():
        found = list(tensors(value))
        yield from ((name if len(found) == 1 else f"{name}[{nth}]", tensor) for nth, tensor in enumerate(found))


def declared(api: Api, name: str) -> Declared | None:
    return next((output for output in api.outputs if output.name == name.partition("[")[0]), None)
