"""FlashInfer's own dumps, and the pieces of a command that was killed, as a recording.

`FLASHINFER_LOGLEVEL=10` leaves a folder with `session.jsonl` and one folder for each call, `FLASHINFER_TRACE_DUMP` a
definition for each name, as JSON. Tensors are never unpickled: values are read of the few whose names decide the work.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import FlashinferPerfError, file_io, printing
from pytest_flashinfer_perf.extensions.traffic import arguments, merging
from pytest_flashinfer_perf.extensions.traffic.merging import Joined, PieceCall
from pytest_flashinfer_perf.extensions.traffic.recording import VERSION, Head, Recording, RecordingError

TAG = "fi_api:"
Values = Mapping[str, Any]


def of_folder(folder: Path) -> Joined:
    """The recording of a folder, and sentences about what was left out."""
    session = folder / "session.jsonl"
    try:
        if session.is_file():
            return recorded(level_10(folder, session))
        definitions = [file_io.read_json(path) for path in sorted(folder.glob("*.json"))]
        if definitions:
            return recorded(traced(definitions))
    except FlashinferPerfError:
        raise
    except Exception as error:
        raise RecordingError(printing.safe(f"{folder}: is no dump of FlashInfer: {error!r}"[:400])) from error
    if not any(folder.glob("*.jsonl")):
        raise RecordingError(f"{folder}: has neither session.jsonl of FLASHINFER_LOGLEVEL=10, nor a trace dump")
    return merging.of_folder(folder)


def recorded(found: Iterable[tuple[str | None, PieceCall]]) -> Joined:
    """The calls that were found, each with the version of FlashInfer that wrote it; those that are alike as one."""
    listed = list(found)
    calls, refused = merging.accepted(merging.joined_alike([call for _, call in listed]))
    versions = [version for version, _ in listed if version]
    count, dropped = sum(call.count for call in calls), sum(call.count for call, _ in refused)
    version = next(iter(versions), None)
    head = Head(traffic=VERSION, flashinfer=version, processes=1, calls=count, dropped=dropped)
    return Joined(Recording(head, calls), faults=[merging.said_of(*one) for one in refused])


def traced(definitions: list[Any]) -> Iterator[tuple[None, PieceCall]]:
    """A definition names its constant sizes alone: the others are unknown, as is how often it was called."""
    for one in definitions:
        names = [tag.removeprefix(TAG) for tag in one["tags"] if tag.startswith(TAG)]
        sizes = {name: axis.get("value") for name, axis in one["axes"].items()}
        given = {
            name: {"tensor": [sizes.get(axis) for axis in tensor["shape"]], "dtype": tensor["dtype"]}
            for name, tensor in one["inputs"].items()
            if tensor["shape"] is not None and tensor["dtype"] != "unknown"
        }
        yield None, PieceCall({"api": names[0], "arguments": given}, count=1)


def level_10(folder: Path, session: Path) -> Iterator[tuple[str | None, PieceCall]]:
    """Each call that was dumped, methods of wrappers with how these had been made and planned."""
    dumped: dict[str, Values] = {}
    for line in session.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        dumped.setdefault(Path(one["dump_dir"]).name, one)  # a later line repeats it, with the answer
    states: dict[Any, tuple[dict[str, Any], Values]] = {}
    for name, one in dumped.items():
        tensors = dict(named(one))
        given = {key: value for key, value in tensors.items() if value is not None}
        sample = values_in(folder / name, one)
        call: dict[str, Any] = {"api": f"{one['module']}.{one['function_name']}", "arguments": given}
        role, wrapper = one["function_name"].rpartition(".")[2], (one.get("process_id"), one.get("self_id"))
        state, planned = states.get(wrapper, ({"init": {}, "plan": {}}, {}))
        if one.get("self_id") is not None and role in ("__init__", "plan"):
            made = {"init": given, "plan": {}} if role == "__init__" else {**state, "plan": given}
            states[wrapper] = (made, sample)
        elif one.get("self_id") is not None:
            call, sample = {**call, "wrapper": dict(state)}, {**planned, **sample}
        yield one["versions"].get("flashinfer"), PieceCall(call, count=1, samples={0: sample} if sample else {})


def named(one: Values) -> Iterator[tuple[str, Any]]:
    """The arguments by name, as a recording has them."""
    inputs = one["tensor_info"]["input_tensor_keys"]
    details = {key: {"type": "torch.Tensor", **one["tensor_details"][key]} for key in inputs}
    for key, value in {**one["input_metadata"], **details}.items():
        name = name_of(key, one)
        if name not in (None, "self") and "__" not in key.removeprefix("kwarg_").removeprefix("arg_"):
            yield str(name), described(str(name), value)


def name_of(key: str, one: Values) -> str | None:
    """`arg_1` is the second parameter of the signature, `kwarg_q` is q."""
    if key.startswith("kwarg_"):
        return key.removeprefix("kwarg_")
    names, place = list(parameters(one["function_signature"])), int(key.split("_")[1])
    return names[place] if place < len(names) else None


def parameters(signature: str) -> Iterator[str]:
    """The names in a signature's text, of which neither annotations nor defaults are evaluated."""
    depth, start, text = 0, 1, f"{signature.partition(' -> ')[0][:-1]},"
    for at, letter in enumerate(text[1:], 1):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield re.split("[:=]", text[start:at], maxsplit=1)[0].strip().lstrip("*")
            start = at + 1


def described(name: str, value: Any) -> Any:
    """What level 10 writes of a value, as a recording has it."""
    if not isinstance(value, dict):
        is_kept = arguments.WORD.fullmatch(value) if isinstance(value, str) else math.isfinite(value or 0)
        return value if is_kept else {"object": type(value).__name__}
    kind = value["type"]
    if kind == "torch.Tensor":
        return tensor(name, value)
    if kind == "torch.dtype":
        return {"dtype": value["value"].removeprefix("torch.")}
    if kind == "enum":
        return {"enum": value["name"], "value": value["value"]}
    if kind in ("list", "tuple") and "items" in value:
        return [described(name, item) for item in value["items"]]
    return {"object": arguments.word(kind)}


def tensor(name: str, value: Values) -> dict[str, Any]:
    shape, is_flat = value["shape"], arguments.FLAT.fullmatch(name) and len(value["shape"]) == 1
    made = {"tensor": [None] if is_flat else shape, "dtype": value["dtype"].removeprefix("torch.")}
    dense = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    return made if value["stride"] == dense else {**made, "strides": value["stride"]}


def values_in(folder: Path, one: Values) -> dict[str, Any]:
    """What the small integer tensors held, of a call's folder."""
    wanted = {key: name_of(key, one) or "" for key in one["tensor_info"]["input_tensor_keys"]}
    wanted = {key: name for key, name in wanted.items() if arguments.how(name) and "__" not in key}
    if not wanted or not folder.name.strip("."):  # the folder above is none of a call
        return {}
    import torch

    tensors: dict[str, Any] = {}
    if (folder / "inputs.safetensors").is_file():
        from safetensors import safe_open

        with safe_open(folder / "inputs.safetensors", framework="pt") as file:
            tensors = {wanted[key]: file.get_tensor(key) for key in file.keys() if key in wanted}  # noqa: SIM118
    elif (folder / "inputs.pt").is_file():
        loaded = torch.load(folder / "inputs.pt", map_location="cpu", weights_only=True, mmap=True)
        tensors = {wanted[key]: tensor for key, tensor in loaded.items() if key in wanted}
    return {name: arguments.summary(name, one) for name, one in arguments.readable(torch, tensors).items()}
