"""Join the files of shards into one run, or explain why they are not parts of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import FlashinferPerfError, Run, formatting, printing, run_file
from pytest_flashinfer_perf.extensions.shards.shards import NAME, ShardOfRun

VERSIONS = ("flashinfer", "torch", "cuda", "cudnn", "cudnn_frontend", "cupti", "driver", "python_version")


class MergeError(FlashinferPerfError):
    """Files that are not parts of one run."""


@dataclass(frozen=True)
class ShardPart:
    """The file of one shard: its JSON, and the run that was read from it."""

    document: dict[str, Any] = field(repr=False)
    run: Run

    @property
    def shard(self) -> ShardOfRun | None:
        return self.run.part(NAME, ShardOfRun)

    @property
    def tests(self) -> tuple[tuple[int, str], ...]:
        return self.shard.tests if self.shard else ()

    @cached_property
    def missing(self) -> list[str]:
        """Tests of this shard that have neither a row nor a reason: it was stopped."""
        finished = {row.fullname for row in self.run.rows} | {one.test for one in self.run.unmeasured}
        return [test for _, test in self.tests if test not in finished]


def read(path: Path) -> ShardPart:
    document = run_file.load(path)
    return ShardPart(document, run_file.verified(run_file.parse(document, str(path))))


def merged(parts: Sequence[ShardPart]) -> dict[str, Any]:
    """One run, with its rows in the order in which one session would have measured them."""
    wrong = [printing.safe(sentence) for check in (duplicates, gaps, mixtures) for sentence in check(parts)]
    if wrong:
        raise MergeError("\n".join(wrong))
    pairs = (pair for part in parts for pair in zip(part.run.rows, part.document["benchmarks"], strict=True))
    entries = {row.fullname: entry for row, entry in pairs}
    places = {test: at for part in parts for at, test in part.tests}
    ordered = [entries[test] for test in sorted(entries, key=lambda test: places.get(test, len(places)))]
    first = min(parts, key=lambda part: part.run.when).document
    own = _block(parts, set(entries)).written()
    return {**first, "machine_info": _machine(parts), "benchmarks": ordered, run_file.SCHEMA_KEY: own}


def _block(parts: Sequence[ShardPart], measured: set[str]) -> run_file.Block:
    """The data beside the rows; a case measured in one file is not unmeasured because of another."""
    left = (one for part in parts for one in part.run.unmeasured)
    roofs = {place: roof for part in parts for place, roof in part.run.roofs.items()}
    added = {name: one for part in reversed(parts) if part.run.block for name, one in part.run.block.parts.items()}
    added.pop(NAME, None)  # which is of one part alone
    return run_file.Block(roofs=roofs, unmeasured=tuple(one for one in left if one.test not in measured), parts=added)


def _machine(parts: Sequence[ShardPart]) -> dict[str, Any]:
    """The machine of the part with the most rows, and the names of all."""
    filled = max(parts, key=lambda part: len(part.run.rows)).run.machine
    names = dict.fromkeys(str(part.run.machine.get("node")) for part in parts)
    return {**filled, "node": ", ".join(names)}


def duplicates(parts: Sequence[ShardPart]) -> Iterator[str]:
    counts = Counter(row.fullname for part in parts for row in part.run.rows)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        yield f"measured more than once: {formatting.some(twice)}"


def gaps(parts: Sequence[ShardPart]) -> Iterator[str]:
    for part in parts:
        if part.shard is None:
            yield f"{part.run.source}: written without --perf-shard, so that nobody knows what is missing"
        elif part.missing:
            yield f"{part.run.source}: no result of {formatting.some(part.missing)}: that run was stopped"
    shards = [part.shard for part in parts if part.shard is not None]
    if len({(shard.of, shard.whole) for shard in shards}) > 1:
        yield "the files are parts of different wholes: other tests, or another n of --perf-shard=i/n"
    elif shards:
        there = {shard.nth for shard in shards}
        absent = [f"{nth}/{shards[0].of}" for nth in range(1, shards[0].of + 1) if nth not in there]
        if absent:
            yield f"shards are missing: {formatting.some(absent)}"


def mixtures(parts: Sequence[ShardPart]) -> Iterator[str]:
    """A file without rows has nothing that could be mixed up."""
    for what, of in {"commits": _commit, "versions": _versions, "GPU models": _models}.items():
        values = {of(part): part.run.source for part in reversed(parts) if part.run.rows}
        if len(values) > 1:
            yield f"mixed {what}: " + "; ".join(f"{value} in {name}" for value, name in values.items())


def _commit(part: ShardPart) -> str:
    return str(part.run.commit.id)


def _versions(part: ShardPart) -> str:
    machine = part.run.machine
    return ", ".join(f"{name} {machine[name]}" for name in VERSIONS if machine.get(name) is not None)


def _models(part: ShardPart) -> str:
    return " and ".join(sorted({str(row.identity.device_name) for row in part.run.rows}))
