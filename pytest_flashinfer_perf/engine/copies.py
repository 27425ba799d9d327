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
    """A copy in which tensors with a `kept` storage are the given ones."""
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
    differ = (_difference(given, made) for given, made in copy.known.values())
    return next(filter(None, differ), "")


def _makers(arguments: Any, lows: Mapping[int, int]) -> dict[int, tuple[int, Make]]:
    """By the id of each tensor: the storage that it is in, and how to make it from memory that begins at this byte."""
    found = {id(tensor): (storage(tensor), tensor) for tensor in in_memory(arguments)}
    return {one: (key, _maker(tensor, lows[key])) for one, (key, tensor) in found.items() if key in lows}


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
        if key and key not in kept:  # one without an address has no memory to share
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
    """A copy that has tensors in other memory; what has none of them in it is the given object itself.

    `still` collects containers without such tensors; `known` has what was copied, with its copy once that is there.
    """

    memory: Mapping[int, torch.UntypedStorage]
    makers: Mapping[int, tuple[int, Make]]
    still: dict[int, Any] = field(default_factory=dict)
    known: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def of(self, tree: Any) -> Any:
        one = id(tree)  # once: filelock, which FlashInfer imports, runs Python for each call of id()
        if one in self.still or not (isinstance(tree, Tensor) or is_container(tree)):
            return tree
        if one not in self.known:
            self.known[one] = tree, None
            self.known[one] = tree, self._tensor(tree) if isinstance(tree, Tensor) else self._container(tree)
        made = self.known[one][1]
        if made is None:
            raise NotCopiedError(f"an argument, a {type(tree).__name__}, contains itself")
        return made

    def _tensor(self, given: Tensor) -> Tensor:
        maker = self.makers.get(id(given))
        if maker is None:
            return given
        made = maker[1](self.memory[maker[0]])
        vars(made).update({name: self.of(value) for name, value in vars(given).items()})
        return made

    def _container(self, given: Any) -> Any:
        before = list(parts(given))
        after = [part._replace(value=self.of(part.value)) for part in before]
        if all(new.value is old.value for new, old in zip(after, before, strict=True)):
            self.still[id(given)] = given
            return given
        made = _empty(given, [part.value for part in after if part.put is list.__setitem__])
        for part in after:
            if not (isinstance(given, tuple) and part.put is list.__setitem__):
                part.put(made, part.place, part.value)
        return made


def _maker(given: Tensor, low: int) -> Make:
    """A function that makes a tensor like this one of memory that begins at byte `low` of its storage."""
    dtype, device, shape, strides = given.dtype, given.device, given.shape, given.stride()
    offset = given.storage_offset() - low // given.itemsize

    def usual(memory: torch.UntypedStorage) -> Tensor:
        return torch.empty(0, dtype=dtype, device=device).set_(memory, offset, shape, strides)

    def special(memory: torch.UntypedStorage) -> Tensor:
        with torch.inference_mode(given.is_inference()), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            made = usual(memory)
            made = made.conj() if given.is_conj() else made
            made = torch._neg_view(made) if given.is_neg() else made  # noqa: SLF001 - torch has no public name for it
            made = made if type(given) is Tensor else made.as_subclass(type(given))
        if given.requires_grad and given.is_leaf:
            made.requires_grad_()
            made.grad = None if given.grad is None else given.grad.clone()
        return made

    flags = given.requires_grad or given.is_conj() or given.is_neg() or given.is_inference()
    return special if flags or type(given) is not Tensor else usual


def _difference(given: Any, made: Any) -> str:
    """The attribute in which a copy differs from what was given, as a sentence; empty if it does not."""
    if not isinstance(given, Tensor):
        same = [type(part.value) for part in parts(made)] == [type(part.value) for part in parts(given)]
        return "" if same else f"an argument, a {type(given).__name__}, cannot be copied"
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        attributes = (name for name in ATTRIBUTES if getattr(given, name, None) != getattr(made, name, None))
        flags = (name for name in FLAGS if getattr(given, name)() != getattr(made, name)())
        lost = next(chain(attributes, flags), None)
        return f"a copy of its argument {describe(given)} would have another {lost}" if lost else ""


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
