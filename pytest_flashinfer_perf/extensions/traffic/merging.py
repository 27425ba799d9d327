"""Join the pieces that the processes of a recorded program wrote into one recording.

A piece may be anybody's, and may end in the middle of a line. What of it cannot be read, or would not be read as a line
of the recording, is left out, counted and said.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pytest_flashinfer_perf.api import fields, formatting, printing
from pytest_flashinfer_perf.extensions.traffic import recording
from pytest_flashinfer_perf.extensions.traffic.arguments import LARGEST
from pytest_flashinfer_perf.extensions.traffic.pieces import MOST_SAMPLES
from pytest_flashinfer_perf.extensions.traffic.recording import (
    LONGEST_LINE,
    MOST_LINES,
    Head,
    KernelTotal,
    RecordedCall,
    Recording,
    RecordingError,
    Sample,
    WrapperState,
)

MOST_CALLS = 1 << 40  # of a line
MOST_FAULTS = 20  # sentences
Line = TypeVar("Line", RecordedCall, KernelTotal)


@dataclass(frozen=True, kw_only=True)
class HeadLine:
    """How many calls are in no line of the piece, and why they could not be written."""

    lost: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class CallLine:
    """What has changed of a distinct call."""

    id: int
    call: Called | None = None
    counts: tuple[int, int] | None = None
    samples: tuple[tuple[int, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Called:
    """A distinct call."""

    api: str
    arguments: Mapping[str, Any]
    wrapper: WrapperState | None = None
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessLine:
    """The process so far."""

    began: float
    ended: float
    fault: str = ""
    raised: Mapping[str, int] = field(default_factory=dict)
    flashinfer: str | None = None
    torch: str | None = None
    devices: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class KernelLine:
    """How often each kernel ran, and for how many seconds."""

    kernels: Mapping[str, tuple[int, float]]


@dataclass
class PieceCall:
    """A distinct call of one process."""

    call: Mapping[str, Any]
    count: int = 0
    replayed: int = 0
    samples: dict[int, Sample] = field(default_factory=dict)


@dataclass
class Piece:
    """What one process wrote."""

    calls: dict[int, PieceCall] = field(default_factory=dict)
    process: ProcessLine | None = None
    kernels: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    head: HeadLine | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(one.count for one in self.calls.values())


@dataclass(frozen=True)
class Joined:
    """The recording of all pieces, how many calls raised, by their functions, and a sentence for each other loss."""

    recording: Recording
    raised: Mapping[str, int] = field(default_factory=dict)
    faults: Sequence[str] = ()


def of_folder(folder: Path) -> Joined:
    pieces = [read(path) for path in sorted(folder.glob("*.jsonl"))]
    faults = [fault for piece in pieces for fault in piece.faults]
    if faults and not any(piece.head or piece.process or piece.calls for piece in pieces):
        raise RecordingError(faults[0])
    own = [piece.process for piece in pieces if piece.process]
    lost = [piece.head for piece in pieces if piece.head and piece.head.lost]
    kept, refused = accepted(joined_alike([one for piece in pieces for one in piece.calls.values() if one.count]))
    times, refused_times = accepted(kernels(pieces))
    faults += [one.fault for one in own if one.fault]
    faults += [f"{formatting.counted(one.lost, 'call')} could not be written: {one.why}" for one in lost if one.why]
    faults += [said_of(*one) for one in refused]
    faults += [f"the time of a kernel: {why}" for _, why in refused_times]
    head = Head(
        traffic=recording.VERSION,
        **{name: next((recording.short(getattr(one, name)) for one in own if getattr(one, name)), None)
           for name in ("flashinfer", "torch")},
        devices=tuple(sorted({recording.short(name) for one in own for name in one.devices or ()})),
        seconds=round(max(0.0, max(one.ended for one in own) - min(one.began for one in own)), 3) if own else 0.0,
        processes=sum(piece.count > 0 for piece in pieces),
        calls=sum(call.count for call in kept),
        dropped=min(LARGEST, sum(one.lost for one in lost) + sum(one.count for one, _ in refused)),
    )  # fmt: skip
    raised: Counter[str] = sum((Counter(one.raised) for one in own), Counter())
    return Joined(Recording(head, kept, times), raised, tuple(dict.fromkeys(map(printing.safe, faults)))[:MOST_FAULTS])


def said_of(call: RecordedCall, why: str) -> str:
    return f"{formatting.counted(call.count, 'call')} of {call.api}: {why}"


def read(path: Path) -> Piece:
    """A piece; a last line without an end is what its process did not finish, and behind NUL there is nothing."""
    piece = Piece()
    if not path.is_file():
        piece.faults.append(f"{path}: is no file")
        return piece
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
            if line[:1] == b"\0" or (not line.endswith(b"\n") and len(line) <= LONGEST_LINE):
                break
            try:
                _add(piece, fields.parsed(line.decode("utf-8")))
            except (fields.FieldError, RecursionError, ValueError) as error:
                piece.faults.append(f"{path}:{number}: is no line of a recorded process: {error}"[:400])
                if len(piece.faults) == MOST_FAULTS:
                    break
    return piece


def _add(piece: Piece, line: Any) -> None:
    if not isinstance(line, dict):
        raise fields.FieldError("it must be an object")
    kind = next((kind for name, kind in KINDS.items() if name in line), ProcessLine)
    made = fields.read(kind, line, "the line")
    if isinstance(made, KernelLine):
        piece.kernels = made.kernels
    elif isinstance(made, HeadLine):
        _verify(made.lost)
        piece.head = made
    elif isinstance(made, CallLine):
        _change(piece, made, line)
    else:
        piece.process = made


KINDS: Mapping[str, Any] = {"kernels": KernelLine, "lost": HeadLine, "id": CallLine}


def _verify(*counts: int) -> None:
    if not all(0 <= count <= MOST_CALLS for count in counts):
        raise fields.FieldError(f"a count must be from 0 to {MOST_CALLS}")


def _change(piece: Piece, change: CallLine, line: Mapping[str, Any]) -> None:
    _verify(*change.counts or ())
    if change.call is not None:
        piece.calls.setdefault(change.id, PieceCall(line["call"]))
    if change.id not in piece.calls:
        raise fields.FieldError(f"no line before it has the call {change.id}")
    one = piece.calls[change.id]
    one.count, one.replayed = change.counts or (one.count, one.replayed)
    one.samples.update(change.samples)


def accepted(lines: Iterable[Line]) -> tuple[tuple[Line, ...], list[tuple[Line, str]]]:
    """The lines that a recording can have, the first ones, and those that its reader would refuse, with the reason."""
    kept: list[Line] = []
    refused = []
    for line in lines:
        why = recording.refusal(line) if len(kept) < MOST_LINES // 2 else "a recording has no more lines"
        if why:
            refused.append((line, why))
        else:
            kept.append(line)
    return tuple(kept), refused


def joined_alike(calls: Iterable[PieceCall]) -> tuple[RecordedCall, ...]:
    """Calls that are alike as one, the most frequent first."""
    alike: dict[str, list[PieceCall]] = {}
    for one in calls:
        alike.setdefault(json.dumps(one.call, sort_keys=True), []).append(one)
    return tuple(sorted(map(joined, alike.values()), key=lambda call: -call.count))


def joined(alike: list[PieceCall]) -> RecordedCall:
    """The same call of several processes, or of several forms of one, as one."""
    call, wrapper = alike[0].call, alike[0].call.get("wrapper")
    return RecordedCall(
        api=call["api"],
        arguments=call["arguments"],
        wrapper=WrapperState(init=wrapper["init"], plan=wrapper["plan"]) if wrapper else None,
        backend=call.get("backend"),
        count=sum(one.count for one in alike),
        replayed=sum(one.replayed for one in alike),
        samples=tuple(drawn([(one.count, list(one.samples.values())) for one in alike])),
    )


def drawn(sources: Iterable[tuple[int, list[Sample]]]) -> Iterator[Sample]:
    """A uniform sample of all calls: each is of a source by how many calls that has left, and none is drawn twice."""
    left = [(count, random.sample(samples, len(samples))) for count, samples in sources if samples]
    weights = [count for count, _ in left]
    for _ in range(min(MOST_SAMPLES, sum(len(samples) for _, samples in left))):
        [place] = random.choices(range(len(left)), weights)  # noqa: S311 - a sample is no secret
        if not left[place][1]:
            return  # more would be of other sources than they weigh
        weights[place] -= 1
        yield left[place][1].pop()


def kernels(pieces: Iterable[Piece]) -> Iterator[KernelTotal]:
    total: dict[str, tuple[int, float]] = {}
    for name, (count, seconds) in (item for piece in pieces for item in piece.kernels.items()):
        before = total.get(name, (0, 0.0))
        total[name] = (before[0] + count, before[1] + seconds)
    for name, (count, seconds) in sorted(total.items(), key=lambda item: -item[1][1]):
        yield KernelTotal(kernel=name, count=count, seconds=seconds)
