"""Join the pieces that the processes of a recorded program wrote into one recording."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import formatting, printing
from pytest_flashinfer_perf.extensions.traffic import recording
from pytest_flashinfer_perf.extensions.traffic.pieces import ENDED, MOST_SAMPLES
from pytest_flashinfer_perf.extensions.traffic.recording import (
    Head,
    RecordedCall,
    Recording,
    RecordingError,
    Sample,
    WrapperState,
)


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

    pid: str
    calls: dict[int, PieceCall] = field(default_factory=dict)
    process: Mapping[str, Any] = field(default_factory=dict)
    is_ended: bool = False

    @property
    def count(self) -> int:
        return sum(one.count for one in self.calls.values())

    def add(self, line: Mapping[str, Any]) -> None:
        self.is_ended = "ended" in line
        if "process" in line:
            self.process = line["process"]
        elif "id" in line:
            if "call" in line:
                self.calls.setdefault(line["id"], PieceCall(line["call"]))
            one = self.calls[line["id"]]
            one.count, one.replayed = line["counts"]
            one.samples.update(line["samples"])


@dataclass(frozen=True)
class Joined:
    """The recording of all pieces, and a sentence for each way in which calls were lost."""

    recording: Recording
    faults: Sequence[str] = ()


def of_folder(folder: Path) -> Joined:
    paths = sorted(folder.glob("*.jsonl"))
    if not paths and not folder.is_dir():
        raise RecordingError(f"{folder}: is no folder with the pieces of a recording")
    pieces = [read(path) for path in paths]
    calls, faults, refused = list[RecordedCall](), list[str](), 0
    for call in joined_alike(one for piece in pieces for one in piece.calls.values() if one.count):
        if why := recording.refusal(call):
            refused += call.count
            faults.append(f"{formatting.counted(call.count, 'call')} of {call.api}: {why}")
        else:
            calls.append(call)
    own = [piece.process for piece in pieces if piece.process]
    faults += [one["fault"] for one in own if one["fault"]]
    faults += [
        f"process {one.pid} was killed or could not write: its last calls may be missing"
        for one in pieces
        if not one.is_ended
    ]
    head = Head(
        traffic=recording.VERSION,
        flashinfer=next((one["flashinfer"] for one in own if one["flashinfer"]), None),
        torch=next((one["torch"] for one in own), None),
        devices=tuple(sorted({name for one in own for name in one["devices"]})),
        seconds=round(max(one["ended"] for one in own) - min(one["began"] for one in own), 3) if own else 0.0,
        processes=sum(piece.count > 0 for piece in pieces),
        calls=sum(call.count for call in calls),
        dropped=refused + sum(one["dropped"] for one in own),
    )
    return Joined(Recording(head, tuple(calls)), tuple(dict.fromkeys(map(printing.safe, faults))))


def read(path: Path) -> Piece:
    """A piece; a last line without an end is what its process did not finish."""
    piece = Piece(path.name.partition("-")[0])
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                piece.add(json.loads(line))
            except (LookupError, TypeError, ValueError) as error:
                sentence = f"{path}:{number}: is no line of a recorded process: {error!r}"[:400]
                raise RecordingError(printing.safe(sentence)) from error
    return piece


def is_ended(path: Path) -> bool:
    """Whether the process of a piece has written all that it had to."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(ENDED)))
        return file.read() == ENDED


def joined_alike(calls: Iterable[PieceCall]) -> tuple[RecordedCall, ...]:
    """Calls that are alike as one, the most frequent first."""
    alike: dict[str, list[PieceCall]] = {}
    for one in calls:
        alike.setdefault(json.dumps(one.call, sort_keys=True), []).append(one)
    return tuple(sorted(map(joined, alike.values()), key=lambda call: -call.count))


def joined(alike: list[PieceCall]) -> RecordedCall:
    """Join the same call of several processes, or of several forms of one, into one."""
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
