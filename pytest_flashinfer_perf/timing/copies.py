"""Copies of a call's arguments: other memory, and all else as it was given, so that the call does the same with each.

Views of one storage stay views of one, an object that is given twice is one object, and tensors and containers keep
their types, attributes and flags.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.spec.nested import all_parts, is_container, reached, tensors

ALIGNMENT = 512
CONTAINERS: tuple[type, ...] = (tuple, list, OrderedDict, defaultdict, dict)
# What a copy of a tensor could lose; grad_fn comes first, since without it requires_grad is lost as well.
ATTRIBUTES = ("grad_fn", "_backward_hooks", "_post_accumulate_grad_hooks", "names", "dtype", "shape", "requires_grad")
FLAGS = ("stride", "is_conj", "is_neg", "is_inference")


class NotCopiedError(FlashinferPerfError):
    """A copy would differ from what was given; the message says by what."""


class Extent(NamedTuple):
    """The bytes of a storage that tensors cover, from an aligned start."""

    low: int
    high: int


class Moved(NamedTuple):
    """Memory for what a storage holds from this byte on."""

    storage: torch.UntypedStorage
    low: int


def clone(arguments: Any, kept: set[int]) -> Any:
    """A copy in which tensors with a `kept` storage are the given ones."""
    return copier(arguments, kept)()


def copier(arguments: Any, kept: set[int]) -> Callable[[], Any]:
    """A function that makes such copies; what they share is computed once."""
    covered = extents(arguments, kept)
    parts = memory(arguments, covered)

    def make() -> Any:
        fresh = {key: Moved(_cloned(part).untyped_storage(), covered[key].low) for key, part in parts.items()}
        return _Copy(fresh).of(arguments)

    return make


def obstacle(arguments: Any) -> str:
    """Why no copy can be as these arguments are; empty if one can. Nothing is copied to find that out."""
    in_place = {storage(tensor): Moved(_storage(tensor), 0) for tensor in in_memory(arguments)}
    begins = sorted((key, key + moved.storage.nbytes()) for key, moved in in_place.items())
    if any(end > begin for (_, end), (begin, _) in pairwise(begins)):
        return "two of the arguments share memory, and not as views of one storage"
    try:
        _Copy(in_place).of(arguments)
    except NotCopiedError as error:
        return str(error)
    return ""


def _cloned(part: Tensor) -> Tensor:
    if part.device.type == "cpu" and part.is_pinned():
        return torch.empty_like(part, pin_memory=True).copy_(part)
    return part.clone()


def memory(arguments: Any, covered: Mapping[int, Extent]) -> dict[int, Tensor]:
    """The bytes of these storages, as they are now."""
    sources = {storage(tensor): tensor for tensor in in_memory(arguments)}
    return {key: _bytes(sources[key])[slice(*extent)] for key, extent in covered.items()}


def _bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(_storage(tensor))


def extents(arguments: Any, kept: Iterable[int] = ()) -> dict[int, Extent]:
    """The bytes that tensors cover in each storage that is not `kept`."""
    found: dict[int, Extent] = {}
    for tensor in in_memory(arguments):
        key = storage(tensor)
        if key and key not in kept:  # without an address: a tensor that `prebuild` pretends
            low, high = _covered(tensor)
            before = found.get(key, Extent(low, high))
            found[key] = Extent(min(low, before.low), max(high, before.high))
    return found


def _covered(tensor: Tensor) -> Extent:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.storage_offset()) * tensor.itemsize
    return Extent(first // ALIGNMENT * ALIGNMENT, first + (reach + 1) * tensor.itemsize)


def in_memory(arguments: Any) -> Iterator[Tensor]:
    """Every tensor that has bytes of its own."""
    return (t for t in reached(arguments) if isinstance(t, Tensor) and not strange(t) and t.numel())


def strange(tensor: Tensor) -> str:
    """The kind of a tensor that has no memory with its values one by one; empty for a usual one."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to see a subclass as a tensor
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return type(tensor).__name__
        if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
            return "tensor without data"
        if tensor.layout != torch.strided:
            return f"{str(tensor.layout).removeprefix('torch.')} tensor"
        return "nested tensor" if tensor.is_nested else "quantised tensor" if tensor.is_quantized else ""


def storage(tensor: Tensor) -> int:
    return _storage(tensor).data_ptr()


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        return tensor.untyped_storage()


def plain(tensor: Tensor) -> Tensor:
    """The same values without a class or an autograd graph of their own."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        return tensor.detach().as_subclass(Tensor)


def describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def storages(tree: Any) -> set[int]:
    return {storage(tensor) for tensor in tensors(tree)}


@dataclass
class _Copy:
    """A copy that has tensors in other memory, by their storages; what has none in it is the given object itself."""

    memory: Mapping[int, Moved]
    known: dict[int, Any] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)

    def of(self, tree: Any) -> Any:
        if id(tree) in self.known or not (isinstance(tree, Tensor) or is_container(tree)):
            return self.known.get(id(tree), tree)
        if id(tree) in self.entered:
            raise NotCopiedError(f"an argument, a {type(tree).__name__}, contains itself")
        self.entered.add(id(tree))
        self.known[id(tree)] = made = self._tensor(tree) if isinstance(tree, Tensor) else self._container(tree)
        return made

    def _tensor(self, given: Tensor) -> Tensor:
        moved = None if strange(given) or not given.numel() else self.memory.get(storage(given))
        if moved is None:
            return given
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            made = _placed(given, moved)
            vars(made).update({name: self.of(value) for _, name, value in all_parts(given)})
            lost = _difference(given, made)
        if lost is not None:
            raise NotCopiedError(f"a copy of its argument {describe(given)} would have another {lost}")
        return made

    def _container(self, given: Any) -> Any:
        before = list(all_parts(given))
        after = [part._replace(value=self.of(part.value)) for part in before]
        if all(new.value is old.value for new, old in zip(after, before, strict=True)):
            return given
        made = _empty(given, [part.value for part in after if part.put is list.__setitem__])
        for part in after:
            if not (isinstance(given, tuple) and part.put is list.__setitem__):
                part.put(made, part.place, part.value)
        if [id(part.value) for part in all_parts(made)] != [id(part.value) for part in after]:
            raise NotCopiedError(f"an argument, a {type(given).__name__}, cannot be copied")
        return made


def _placed(given: Tensor, moved: Moved) -> Tensor:
    """A tensor like this one in other memory."""
    offset = given.storage_offset() - moved.low // given.itemsize
    with torch.inference_mode(given.is_inference()):
        made = torch.empty(0, dtype=given.dtype, device=given.device)
        made.set_(moved.storage, offset, given.shape, given.stride())
        made = made.conj() if given.is_conj() else made
        made = torch._neg_view(made) if given.is_neg() else made  # noqa: SLF001 - torch has no public name for it
        made = made if type(given) is Tensor else made.as_subclass(type(given))
    if given.requires_grad and given.is_leaf:
        made.requires_grad_()
        made.grad = None if given.grad is None else given.grad.clone()
    return made


def _difference(given: Tensor, made: Tensor) -> str | None:
    differ = (name for name in ATTRIBUTES if getattr(given, name, None) != getattr(made, name, None))
    flags = (name for name in FLAGS if getattr(given, name)() != getattr(made, name)())
    return next(chain(differ, flags), None)


def _empty(given: Any, items: list[Any]) -> Any:
    """An object of this type without a call of its constructor; a tuple or a list has these items from the start."""
    kind = next((kind for kind in CONTAINERS if isinstance(given, kind)), object)
    if kind is tuple and hasattr(given, "n_sequence_fields"):  # torch's results, as of max(), which need theirs
        return type(given)(items)
    made: Any = kind.__new__(type(given), *([items] if kind is tuple else []))
    if kind is list:
        list.extend(made, items)
    if kind is defaultdict:
        made.default_factory = given.default_factory
    return made
