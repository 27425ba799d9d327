"""The arguments of a call: a key that is found fast, their description as JSON, and what small tensors held.

It runs inside recorded programs, so that it imports nothing; torch is handed to it. A key is made by a function that
is compiled once for each form of call, which is the types of the arguments and the names of those given by name.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Key = tuple[Any, ...]
KeyOf = Callable[[tuple[Any, ...], Mapping[str, Any]], Key]

NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
API = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
NOT_IN_WORDS, NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]"), re.compile(r"[^A-Za-z0-9_]")
LONGEST_API = 200
LARGEST = 1 << 62  # of sizes, counts and other whole numbers
LONGEST_LIST, DEEPEST = 256, 6  # of Python's lists and tuples; a longer one is an object, and so is one deep in others
# Numbers that differ with each call and change no work: the state of random generators.
VARYING = re.compile(r"(rand_|philox_)?(seed|offset)")
# The small integer tensors whose values decide the work. No other tensor is read.
SUMMARIES = {
    "lengths": re.compile(r"(\w+_)?indptr(_\w+)?|(\w+_)?cum?_?seq_?lens(_\w+)?"),
    "values": re.compile(r"(\w+_)?(seq_?|sequence_)?(lens?|lengths?|seqlens?|seqused)(_\w+)?|masked_m"),
    "counts": re.compile(r"topk_ids|token_selected_experts|expert_ids"),
}
# Lists of pages: how long they are follows from lengths, and differs with each plan.
FLAT = re.compile(r"(paged_)?(kv_)?indices")
MOST_EXPERTS = 4096
MOST_VALUES = {"lengths": 4096, "values": 4096, "counts": 65_536}  # of a tensor that is read


def how(name: str) -> str | None:
    """The way in which a tensor of this name is summed up; None for one that is not read."""
    return next((kind for kind, names in SUMMARIES.items() if names.fullmatch(name)), None)


def key_maker(torch: Any, start: str, named: list[tuple[str, str, Any]], **names: Any) -> KeyOf:
    """A function of a call's arguments; `named` has name, place and value of each, `names` what `start` refers to."""
    names |= {"nested": lambda values: _nested(torch, values), "type": type, "len": len}
    parts = [part for name, place, value in named for part in _parts(torch, name, place, value, names)]
    source = f"lambda a, k: ({start}, {''.join(f'{part}, ' for part in parts)})"
    return eval(source, names)  # type: ignore[no-any-return]  # noqa: S307 - it is made of places, no text of a call


def _parts(torch: Any, name: str, place: str, value: Any, names: dict[str, Any]) -> Iterator[str]:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        sizes = f"{place}.shape, {place}.is_contiguous() or {place}.stride()"
        yield f"{place}.dim() == 1 or ({sizes})" if FLAT.fullmatch(name) else sizes
        yield f"{place}.dtype"
    elif issubclass(kind, (list, tuple)) and 0 < len(value) <= 4 and all(type(one) is torch.Tensor for one in value):
        names["Tensor"] = torch.Tensor  # the keys and values of a cache: as fast as two arguments
        each = [f"{place}[{at}]" for at in range(len(value))]
        alike = " and ".join([f"len({place}) == {len(each)}", *(f"type({one}) is Tensor" for one in each)])
        parts = [part for one in each for part in _parts(torch, name, one, value[0], names)]
        yield f"({', '.join(parts)}) if {alike} else nested({place})"
    elif issubclass(kind, (list, tuple)):
        yield f"nested({place})"
    elif _is_plain(torch, kind) and not _varies(name, value):
        yield place


def _is_plain(torch: Any, kind: type) -> bool:
    return kind in (bool, int, float, str, torch.dtype) or issubclass(kind, enum.Enum)


def _nested(torch: Any, values: Any) -> Any:
    if len(values) > LONGEST_LIST:
        return None
    return tuple([_leaf(torch, one) for one in values])


def _leaf(torch: Any, value: Any) -> Any:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return value.shape, value.is_contiguous() or value.stride(), value.dtype
    if issubclass(kind, (list, tuple)):
        return _nested(torch, value)
    return (kind, value) if _is_plain(torch, kind) else kind


def described(torch: Any, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as JSON, without None and those at their default."""
    return {
        as_name(name): {"object": "int"} if _varies(name, value) else _value(torch, value, flat=is_flat(name))
        for name, value in arguments.items()
        if not _is_left_out(name, value, defaults.get(name))
    }


def as_name(name: str) -> str:
    """The name of an argument, which may be any text where a function takes `**kwargs`."""
    return name if NAME.fullmatch(name) else f"_{NOT_IN_NAMES.sub('_', name)}"[:64]


def as_api(name: str) -> str:
    """The name of a function, which may be one inside of another, or have none."""
    if API.fullmatch(name) and len(name) <= LONGEST_API:
        return name
    return ".".join(as_name(part.strip("<>")) for part in name.split("."))[-LONGEST_API:].lstrip(".")


def is_flat(name: str) -> bool:
    return bool(FLAT.fullmatch(name))


def _varies(name: str, value: Any) -> bool:
    return type(value) is int and bool(VARYING.fullmatch(name))


def _is_left_out(name: str, value: Any, default: Any) -> bool:
    if _varies(name, value):
        return False
    is_same = type(value) is type(default) and isinstance(value, (bool, int, float, str)) and value == default
    return value is None or value is default or is_same


def _value(torch: Any, value: Any, *, flat: bool = False, depth: int = 0) -> Any:
    """The value in a recording; the name of its type for what has no form there."""
    if isinstance(value, torch.Tensor):
        return _tensor(value, flat=flat)
    if isinstance(value, enum.Enum):
        return {"enum": word(f"{type(value).__name__}.{value.name}"), "value": _plain(value.value)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)) and len(value) <= LONGEST_LIST and depth < DEEPEST:
        return [_value(torch, one, depth=depth + 1) for one in value]
    plain = _plain(value)
    return plain if plain is not None or value is None else {"object": word(type(value).__name__)}


def _plain(value: Any) -> Any:
    """A number, a word or a switch; None for all else."""
    kind = type(value)
    is_word = kind is str and WORD.fullmatch(value)
    is_number = (kind is int and abs(value) <= LARGEST) or (kind is float and math.isfinite(value))
    return value if kind is bool or is_word or is_number else None


def word(text: str) -> str:
    return NOT_IN_WORDS.sub("_", text)[:64] or "_"


def _tensor(tensor: Any, *, flat: bool) -> dict[str, Any]:
    sizes = [None] if flat and tensor.dim() == 1 else [one if type(one) is int else None for one in tensor.shape]
    description: dict[str, Any] = {"tensor": sizes, "dtype": str(tensor.dtype).removeprefix("torch.")}
    if not tensor.is_contiguous() and all(type(one) is int for one in tensor.stride()):
        description["strides"] = list(tensor.stride())
    return description


def readable(torch: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors among the arguments whose values decide the work, and are few."""
    tensors = {}
    for name, one in arguments.items():
        kind = how(name)
        is_read = kind is not None and isinstance(one, torch.Tensor) and one.dtype in (torch.int32, torch.int64)
        if is_read and 0 < one.numel() <= MOST_VALUES[kind]:  # type: ignore[index]
            tensors[name] = one
    return tensors


def buffer(torch: Any, tensor: Any) -> Callable[[], Any]:
    """Reads what lies later where the tensor is now, None once nobody else has that memory: to keep it would take it
    from a graph, which uses it again.
    """
    memory = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
    dtype, place = tensor.dtype, (tensor.storage_offset(), tensor.shape, tensor.stride())

    def now() -> Any:
        there = torch.UntypedStorage._new_with_weak_ptr(memory.cdata)  # noqa: SLF001 - as torch's own references do
        return None if there is None else torch.empty(0, dtype=dtype, device=there.device).set_(there, *place)

    return now


def summary(name: str, tensor: Any) -> dict[str, Any]:
    """What a tensor held, of which a copy is given that lies on the CPU; a value that makes no sense counts as 0."""
    kind, numbers = how(name), tensor.flatten().tolist()
    if kind == "lengths":
        return {"lengths": [_size(after - before) for before, after in itertools.pairwise(numbers)]}
    if kind == "values":
        return {"values": [_size(one) for one in numbers]}
    experts = [one for one in numbers if 0 <= one < MOST_EXPERTS]
    return {"counts": [experts.count(expert) for expert in range(max(experts, default=-1) + 1)]}


def _size(number: int) -> int:
    return number if 0 <= number <= LARGEST else 0
