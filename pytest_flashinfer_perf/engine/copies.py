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
from pytest_flashinfer_perf.spec.nested import is_container, parts, reached, tensors

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


Make = Callable[[torch.UntypedStorage], Tensor]


def clone(arguments: Any, kept: set[int]) -> Any:
    """Copy the arguments, except for tensors with a `kept` storage."""
    return copier(arguments, kept)()


def copier(arguments: Any, kept: set[int]) -> Callable[[], Any]:
    """A function that makes such copies; what they share is computed once."""
    covered = extents(arguments, kept)
    bytes_of, makers = memory(arguments, covered), _makers(arguments, {key: low for key, (low, _) in covered.items()})
    still: dict[int, Any] = {}

    def copy() -> Any:
        return _Copy({key: _cloned(raw).untyped_storage() for key, raw in bytes_of.items()}, makers, still).of(
            arguments
        )

    return copy


def obstacle(arguments: Any) -> str:
    """Why no copy can be as these arguments are; empty if one can. No memory is copied to find that out."""
    own = {storage(tensor): _storage(tensor) for tensor in in_memory(arguments)}
    begins = sorted((key, key + memory.nbytes()) for key, memory in own.items())
    if any(end > begin for (_, end), (begin, _) in pairwise(begins)):
        return "two of the arguments share memory, and not as views of one storage"
    try:
        copy = _Copy(own, _makers(arguments, dict.fromkeys(own, 0)))
        copy.of(arguments)
    except NotCopiedError as error:
        return str(error)
    differ = (_difference(original, new) for original, new in copy.copied.values())
    return next(filter(None, differ), "")


def _makers(arguments: Any, lows: Mapping[int, int]) -> dict[int, tuple[int, Make]]:
    """Map each tensor's id to its storage, and to what makes it from memory that begins at this byte."""
    by_id = {id(tensor): (storage(tensor), tensor) for tensor in in_memory(arguments)}
    return {one: (key, _maker(tensor, lows[key])) for one, (key, tensor) in by_id.items() if key in lows}


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
    """Find the bytes that tensors cover in each storage that is not `kept`."""
    extent_of: dict[int, Extent] = {}
    for tensor in in_memory(arguments):
        key = storage(tensor)
        if key and key not in kept:  # one without an address has no memory to share
            low, high = _covered(tensor)
            before = extent_of.get(key, Extent(low, high))
            extent_of[key] = Extent(min(low, before.low), max(high, before.high))
    return extent_of


def _covered(tensor: Tensor) -> Extent:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.storage_offset()) * tensor.itemsize
    return Extent(first // ALIGNMENT * ALIGNMENT, first + (reach + 1) * tensor.itemsize)


def in_memory(arguments: Any) -> Iterator[Tensor]:
    """Every tensor that has bytes of its own."""
    return (t for t in reached(arguments) if isinstance(t, Tensor) and not unusual_kind(t) and t.numel())


def unusual_kind(tensor: Tensor) -> str:
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
    """A copy that has tensors in other memory; what has none of them in it is the given object itself.

    `still` collects containers without such tensors; `copied` has each original with its copy, once that is there.
    """

    memory: Mapping[int, torch.UntypedStorage]
    makers: Mapping[int, tuple[int, Make]]
    still: dict[int, Any] = field(default_factory=dict)
    copied: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def of(self, tree: Any) -> Any:
        one = id(tree)  # once: filelock, which FlashInfer imports, runs Python for each call of id()
        if one in self.still or not (isinstance(tree, Tensor) or is_container(tree)):
            return tree
        if one not in self.copied:
            self.copied[one] = tree, None
            self.copied[one] = tree, self._tensor(tree) if isinstance(tree, Tensor) else self._container(tree)
        copy = self.copied[one][1]
        if copy is None:
            raise NotCopiedError(f"an argument, a {type(tree).__name__}, contains itself")
        return copy

    def _tensor(self, original: Tensor) -> Tensor:
        maker = self.makers.get(id(original))
        if maker is None:
            return original
        new = maker[1](self.memory[maker[0]])
        vars(new).update({name: self.of(value) for name, value in vars(original).items()})
        return new

    def _container(self, original: Any) -> Any:
        before = list(parts(original))
        after = [part._replace(value=self.of(part.value)) for part in before]
        if all(new.value is old.value for new, old in zip(after, before, strict=True)):
            self.still[id(original)] = original
            return original
        copy = _empty(original, [part.value for part in after if part.put is list.__setitem__])
        for part in after:
            if not (isinstance(original, tuple) and part.put is list.__setitem__):
                part.put(copy, part.place, part.value)
        return copy


def _maker(original: Tensor, low: int) -> Make:
    """A function that makes a tensor like this one of memory that begins at byte `low` of its storage."""
    dtype, device, shape, strides = original.dtype, original.device, original.shape, original.stride()
    offset = original.storage_offset() - low // original.itemsize

    def usual(memory: torch.UntypedStorage) -> Tensor:
        return torch.empty(0, dtype=dtype, device=device).set_(memory, offset, shape, strides)

    def special(memory: torch.UntypedStorage) -> Tensor:
        with torch.inference_mode(original.is_inference()), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            new = usual(memory)
            new = new.conj() if original.is_conj() else new
            new = torch._neg_view(new) if original.is_neg() else new  # noqa: SLF001 - torch has no public name for it
            new = new if type(original) is Tensor else new.as_subclass(type(original))
        if original.requires_grad and original.is_leaf:
            new.requires_grad_()
            new.grad = None if original.grad is None else original.grad.clone()
        return new

    flags = original.requires_grad or original.is_conj() or original.is_neg() or original.is_inference()
    return special if flags or type(original) is not Tensor else usual


def _difference(original: Any, new: Any) -> str:
    """The attribute in which a copy differs from what was given, as a sentence; empty if it does not."""
    if not isinstance(original, Tensor):
        same = [type(part.value) for part in parts(new)] == [type(part.value) for part in parts(original)]
        return "" if same else f"an argument, a {type(original).__name__}, cannot be copied"
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        attributes = (name for name in ATTRIBUTES if getattr(original, name, None) != getattr(new, name, None))
        flags = (name for name in FLAGS if getattr(original, name)() != getattr(new, name)())
        lost = next(chain(attributes, flags), None)
        return f"a copy of its argument {describe(original)} would have another {lost}" if lost else ""


def _empty(original: Any, items: list[Any]) -> Any:
    """An object of this type without a call of its constructor; a tuple or a list has these items from the start."""
    kind = next((kind for kind in CONTAINERS if isinstance(original, kind)), object)
    if kind is tuple and hasattr(original, "n_sequence_fields"):  # torch's results, as of max(), which need theirs
        return type(original)(items)
    new: Any = kind.__new__(type(original), *([items] if kind is tuple else []))
    if kind is list:
        list.extend(new, items)
    if kind is defaultdict:
        new.default_factory = original.default_factory
    return new
