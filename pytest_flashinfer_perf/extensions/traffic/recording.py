"""A recording of what a program called: the file's types, and its only reader and writer.

A file has JSON lines: the head, then a line for each distinct call. It may be anybody's, so that each line is held to
the form that docs/traffic.md describes, and nothing in it is executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from pytest_flashinfer_perf.api import fields as core_fields
from pytest_flashinfer_perf.api import file_io, printing
from pytest_flashinfer_perf.extensions.traffic.arguments import API, DEEPEST, LARGEST, LONGEST_API, NAME, WORD
from pytest_flashinfer_perf.extensions.traffic.pieces import MOST_SAMPLES

VERSION: Final = 1
LONGEST_LINE, MOST_LINES, LONGEST_LIST, LONGEST_TEXT = 1 << 24, 1 << 20, 1 << 16, 200
LISTS = ("lengths", "values", "counts")  # one of which a sample has of a tensor
FORMS = ({"tensor", "dtype"}, {"tensor", "dtype", "strides"}, {"dtype"}, {"object"}, {"enum", "value"})

Json = Any  # a value of an argument: see _verify_value
Sample = Mapping[str, Mapping[str, Any]]


class RecordingError(file_io.FileError):
    """A file that is no recording; the message names it, the line and the reason."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The first line: where and how long calls were recorded, and how many are in no line."""

    traffic: Literal[1]
    flashinfer: str | None = None
    torch: str | None = None
    devices: tuple[str, ...] = ()
    seconds: float = 0.0  # from the first process' first call to the last one's last
    processes: int = 0
    calls: int = 0  # of all lines together
    dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class WrapperState:
    """The arguments of the wrapper's constructor and of its last plan."""

    init: Mapping[str, Json]
    plan: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """Calls of one API that are alike in everything but what their small integer tensors held.

    `count` includes the calls that replays of CUDA graphs made; each of the samples stands for as many calls.
    """

    api: str
    arguments: Mapping[str, Json]  # those that differ from the default
    wrapper: WrapperState | None = None
    backend: str | None = None  # what FlashInfer chose, where its wrapper tells
    count: int
    replayed: int = 0
    samples: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Recording:
    """A whole file."""

    head: Head
    calls: tuple[RecordedCall, ...]


def write(path: Path, recording: Recording) -> None:
    """Write the file, of which each line is one that `read` accepts."""
    lines = list(as_lines(recording))
    for nth, line in enumerate(lines):
        try:
            _object(line.encode(), is_first=nth == 0)
        except core_fields.FieldError as error:  # noqa: PERF203 - it names the line
            raise RecordingError(f"{path}: not written, it would not be read again: {error}") from error
    file_io.write_whole(path, "".join(f"{line}\n" for line in lines))


def refusal(call: RecordedCall) -> str:
    """Why `read` would refuse it, if it would."""
    try:
        _object(_line(call).encode(), is_first=False)
    except core_fields.FieldError as error:
        return str(error)
    return ""


def as_lines(recording: Recording) -> Iterator[str]:
    """The lines of the file; members that say nothing are left out."""
    yield _line(recording.head)
    yield from map(_line, recording.calls)


def _line(one: Head | RecordedCall) -> str:
    unsaid = {field.name: field.default for field in fields(one)} if isinstance(one, RecordedCall) else {}
    values = {name: value for name, value in vars(one).items() if name not in unsaid or value != unsaid[name]}
    return json.dumps(core_fields.written(values))


def is_recording(path: Path) -> bool:
    """Whether the file begins as a recording does; the reader says what is wrong with the rest."""
    try:
        with path.open("rb") as file:
            return file.read(11) == b'{"traffic":'
    except OSError:
        return False


def read(path: Path) -> Recording:
    """The recording in a file, or a RecordingError with the line and the reason."""
    entries: list[Any] = []
    for number, line in _lines(path):
        try:
            entries.append(_object(line, is_first=not entries))
        except core_fields.FieldError as error:  # noqa: PERF203 - it names the line
            raise RecordingError(f"{path}:{number}: {error}") from error
    if not entries:
        raise RecordingError(f"{path}: is empty: `flashinfer-perf record` writes a recording")
    head, *calls = entries
    if head.calls != (count := sum(call.count for call in calls)):
        raise RecordingError(f"{path}:1: calls is {head.calls}, the lines have {count}")
    return Recording(head, tuple(calls))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE or number > MOST_LINES:
                    raise RecordingError(
                        f"{path}:{number}: a line has at most {LONGEST_LINE} bytes, a recording {MOST_LINES} lines"
                    )
                yield number, line
    except OSError as error:
        raise RecordingError(printing.safe(f"{path}: cannot be read: {error}")) from error


def _object(line: bytes, *, is_first: bool) -> Head | RecordedCall:
    try:
        values = core_fields.parsed(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise core_fields.FieldError(f"is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise core_fields.FieldError(f"must be an object, got {core_fields.shown(values)}")
    kind: Any = Head if is_first else RecordedCall
    _verify_members(kind, values, "")
    if isinstance(values.get("wrapper"), dict):
        _verify_members(WrapperState, values["wrapper"], "wrapper: ")
    entry = core_fields.read(kind, values, kind.__name__)
    VERIFY[kind](entry)
    return entry  # type: ignore[no-any-return]


# What each member has to be.


def _verify_members(kind: Any, values: Mapping[str, Any], where: str) -> None:
    members = [field.name for field in fields(kind)]
    for name in values:
        if name not in members:
            raise core_fields.FieldError(
                f"{where}{core_fields.shown(name)} is no member, known are {', '.join(members)}"
            )


def _verify_head(head: Head) -> None:
    for text in filter(None, (head.flashinfer, head.torch, *head.devices)):
        if len(text) > LONGEST_TEXT or printing.safe(text) != text:
            raise core_fields.FieldError(f"a version or device is a short text, got {core_fields.shown(text)}")
    for name in ("seconds", "processes", "calls", "dropped"):
        _verify_size(getattr(head, name), name)


def _verify_call(call: RecordedCall) -> None:
    if not API.fullmatch(call.api) or len(call.api) > LONGEST_API:
        raise core_fields.FieldError(f"api must be a module and a name, got {core_fields.shown(call.api)}")
    wrapper = call.wrapper or WrapperState(init={}, plan={})
    groups = {"arguments": call.arguments, "wrapper: plan": wrapper.plan, "wrapper: init": wrapper.init}
    for where, name, value in ((where, *one) for where, values in groups.items() for one in values.items()):
        if not NAME.fullmatch(name):
            raise core_fields.FieldError(f"{where}: {core_fields.shown(name)} is no name of an argument")
        _verify_value(value, f"{where}: {name}")
    _verify_word(call.backend or "-", "backend")
    _verify_size(call.count, "count")
    if not 0 <= call.replayed <= call.count:
        raise core_fields.FieldError(f"replayed is {call.replayed}, more than count, {call.count}")
    if len(call.samples) > min(MOST_SAMPLES, call.count):
        raise core_fields.FieldError(f"samples are at most {MOST_SAMPLES} and at most count, got {len(call.samples)}")
    for nth, sample in enumerate(call.samples):
        _verify_sample(sample, {*call.arguments, *wrapper.plan}, f"samples[{nth}]")


VERIFY: dict[Any, Any] = {Head: _verify_head, RecordedCall: _verify_call}


def _verify_sample(sample: Mapping[str, Any], arguments: set[str], where: str) -> None:
    for name, held in sample.items():
        members = sorted(held) if isinstance(held, dict) else []
        if name not in arguments:
            raise core_fields.FieldError(f"{where}: {core_fields.shown(name)} is no argument of the call or its plan")
        if members not in [[one] for one in LISTS]:
            raise core_fields.FieldError(
                f"{where}: {name} must have one of {', '.join(LISTS)}, got {core_fields.shown(held)}"
            )
        _verify_sizes(held[members[0]], f"{where}: {name}")


def _verify_value(value: Json, where: str, depth: int = 0) -> None:
    """A number, a word, a list of values, or an object that describes a tensor, a dtype, an enum or another object."""
    if depth > DEEPEST:
        raise core_fields.FieldError(f"{where} is nested too deeply")
    if isinstance(value, (int, float)):
        if not (abs(value) <= LARGEST or (isinstance(value, float) and math.isfinite(value))):
            raise core_fields.FieldError(f"{where} must be a number of at most 62 bits, got {core_fields.shown(value)}")
    elif isinstance(value, list):
        for one in _verify_list(value, where):
            _verify_value(one, where, depth + 1)
    elif isinstance(value, dict):
        _verify_form(value, where)
    elif value is not None:
        _verify_word(value, where)


def _verify_form(value: Mapping[str, Any], where: str) -> None:
    if set(value) not in FORMS:
        raise core_fields.FieldError(
            f"{where} must be a number, a word, a list, or an object with tensor and dtype, "
            f"dtype, enum and value, or object, got {core_fields.shown(value)}"
        )
    for name in ("dtype", "object", "enum"):
        _verify_word(value.get(name, "-"), f"{where}: {name}")
    if "tensor" in value:
        sizes = _verify_sizes([0 if size is None else size for size in _verify_list(value["tensor"], where)], where)
        if len(_verify_sizes(value.get("strides", sizes), where)) != len(sizes):
            raise core_fields.FieldError(
                f"{where} must have a stride for each dimension, got {core_fields.shown(value)}"
            )
    if isinstance(value.get("value"), (list, dict)):
        raise core_fields.FieldError(f"{where}: the value of an enum is a number or a word")
    _verify_value(value.get("value"), where)


def _verify_list(values: Any, where: str) -> list[Any]:
    if not isinstance(values, list) or len(values) > LONGEST_LIST:
        raise core_fields.FieldError(
            f"{where} must be a list of at most {LONGEST_LIST}, got {core_fields.shown(values)}"
        )
    return values


def _verify_sizes(values: Any, where: str) -> Sequence[int]:
    for one in _verify_list(values, where):
        if not isinstance(one, int) or isinstance(one, bool):
            raise core_fields.FieldError(f"{where} must have whole numbers, got {core_fields.shown(one)}")
        _verify_size(one, where)
    return values  # type: ignore[no-any-return]


def _verify_size(value: float, where: str) -> None:
    if not 0 <= value <= LARGEST:
        raise core_fields.FieldError(f"{where} must be from 0 to {LARGEST}, got {core_fields.shown(value)}")


def _verify_word(value: Any, where: str) -> None:
    if not isinstance(value, str) or not WORD.fullmatch(value):
        raise core_fields.FieldError(f"{where} must be a short word, got {core_fields.shown(value)}")
