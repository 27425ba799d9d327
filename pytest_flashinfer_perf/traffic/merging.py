"""Join the pieces that the processes of a recorded program wrote into one recording."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.traffic import recording
from pytest_flashinfer_perf.traffic.pieces import MOST_SAMPLES
from pytest_flashinfer_perf.traffic.recording import Head, KernelTotal, RecordedCall, Recording, RecordingError, Sample


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
    process: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, tuple[int, float]] = field(default_factory=dict)


def of_folder(folder: Path) -> tuple[Recording, list[str]]:
    """The recording of all pieces, and a sentence for each fault of the recorder."""
    pieces = [read(path) for path in sorted(folder.glob("*.jsonl"))]
    own = [piece.process for piece in pieces if piece.process]
    calls = joined_alike([one for piece in pieces for one in piece.calls.values() if one.count])
    head = Head(
        traffic=recording.VERSION,
        **{name: next((one[name] for one in own if one.get(name)), None) for name in ("flashinfer", "torch")},
        devices=tuple(sorted({name for one in own for name in one.get("devices") or ()})),
        seconds=round(max(one["ended"] for one in own) - min(one["began"] for one in own), 3) if own else 0.0,
        processes=sum(any(one.count for one in piece.calls.values()) for piece in pieces),
        calls=sum(call.count for call in calls),
        dropped=sum(one["dropped"] for one in own),
    )
    faults = dict.fromkeys(one["fault"] for one in own if one["fault"])
    return Recording(head, calls, tuple(kernels(pieces))), list(faults)


def read(path: Path) -> Piece:
    """A piece; a last line that is torn is what its process did not finish."""
    piece = Piece()
    number = 0
    try:
        for number, text in enumerate(  # noqa: B007 - the error names it
            path.read_text(encoding="utf-8").split("\n")[:-1], 1
        ):
            _add(piece, json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path}:{number}: is no line of a recorded process: {error!r}") from error
    return piece


def _add(piece: Piece, line: Mapping[str, Any]) -> None:
    if "kernels" in line:
        piece.kernels = {name: (int(count), float(seconds)) for name, (count, seconds) in line["kernels"].items()}
    elif "id" not in line:
        piece.process = line
    else:
        if "call" in line:
            piece.calls.setdefault(line["id"], PieceCall(line["call"]))
        one = piece.calls[line["id"]]
        one.count, one.replayed = line.get("counts", (one.count, one.replayed))
        one.samples.update(line.get("samples", ()))


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
        wrapper=recording.WrapperState(init=wrapper["init"], plan=wrapper["plan"]) if wrapper else None,
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
