"""Files of shards become one, as if one session had measured all of it; or a sentence says why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.runs import run_file
from pytest_flashinfer_perf.runs.run_file import SCHEMA_KEY, RunError

VERSIONS = ("flashinfer", "torch", "cuda", "cudnn", "cudnn_frontend", "cupti", "driver", "python_version")
SHOWN = 5


class MergeError(FlashinferPerfError):
    """Files that are not parts of one run."""


@dataclass(frozen=True)
class Part:
    """A file, and what it says of the whole that it is a part of."""

    name: str
    document: dict[str, Any] = field(repr=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.document["benchmarks"])

    @property
    def own(self) -> dict[str, Any]:
        return dict(self.document[SCHEMA_KEY])

    @property
    def shard(self) -> dict[str, Any] | None:
        return self.own.get("shard") or None

    @cached_property
    def missing(self) -> list[str]:
        """Tests of this shard of which nothing is said: it was stopped."""
        told = {row["fullname"] for row in self.rows} | {one.get("test") for one in self.own.get("unmeasured", ())}
        return [test for _, test in (self.shard or {}).get("tests", ()) if test not in told]

    @property
    def commit(self) -> str:
        return str(self.document["commit_info"].get("id"))

    @property
    def versions(self) -> str:
        machine = self.document["machine_info"]
        return ", ".join(f"{name} {machine[name]}" for name in VERSIONS if machine.get(name) is not None)

    @property
    def models(self) -> str:
        return " and ".join(sorted({str(row["extra_info"].get("device_name")) for row in self.rows}))


def read(path: Path) -> Part:
    """With all of it that is looked at here."""
    document = run_file.read(path)
    rows = (row if isinstance(row, dict) and "fullname" in row else {} for row in document["benchmarks"])
    said = [document.get("machine_info"), document.get("commit_info"), *(row.get("extra_info") for row in rows)]
    if not all(isinstance(one, dict) for one in said):
        raise RunError(f"{path} is not as pytest-benchmark wrote it")
    return Part(str(path), document)


def merged(parts: Sequence[Part], allowed: Iterable[str] = ()) -> dict[str, Any]:
    """In the order in which one session would have measured it."""
    wrong = [
        f"{sentence} (--allow {name})"
        for name, check in CHECKS.items()
        if name not in set(allowed)
        for sentence in check(parts)
    ]
    if wrong:
        raise MergeError("\n".join(wrong))
    rows = {row["fullname"]: row for part in parts for row in part.rows}
    places = {test: at for part in parts for at, test in (part.shard or {}).get("tests", ())}
    ordered = sorted(rows.values(), key=lambda row: places.get(row["fullname"], len(places)))
    first = min(parts, key=lambda part: str(part.document["datetime"])).document
    return {**first, "machine_info": _machine(parts), "benchmarks": ordered, SCHEMA_KEY: _own(parts, set(rows))}


def _own(parts: Sequence[Part], measured: set[str]) -> dict[str, Any]:
    """What is measured in one file is not unmeasured for another."""
    said = (one for part in parts for one in part.own.get("unmeasured", ()))
    roofs = {place: roof for part in parts for place, roof in part.own.get("roofs", {}).items()}
    return run_file.block(roofs, [one for one in said if one.get("test") not in measured])


def _machine(parts: Sequence[Part]) -> dict[str, Any]:
    """Of one that measured something, and all their names."""
    filled = max(parts, key=lambda part: len(part.rows)).document["machine_info"]
    names = dict.fromkeys(str(part.document["machine_info"].get("node")) for part in parts)
    return {**filled, "node": ", ".join(names)}


def duplicates(parts: Sequence[Part]) -> Iterator[str]:
    seen = Counter(row["fullname"] for part in parts for row in part.rows)
    twice = [name for name, count in seen.items() if count > 1]
    if twice:
        yield f"measured more than once: {_some(twice)}"


def gaps(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if part.shard is None:
            yield f"{part.name}: says nothing of --perf-shard, so that nobody knows what is missing"
        elif part.missing:
            yield f"{part.name}: nothing is said of {_some(part.missing)}: that run was stopped"
    shards = [part.shard for part in parts if part.shard is not None]
    if len({(shard["of"], shard["whole"]) for shard in shards}) > 1:
        yield "the files are parts of different wholes: other tests, another n of --perf-shard=i/n, or --perf-shard-by"
    elif shards:
        there = {shard["nth"] for shard in shards}
        absent = [f"{nth}/{shards[0]['of']}" for nth in range(1, shards[0]["of"] + 1) if nth not in there]
        if absent:
            yield f"shards are missing: {_some(absent)}"


def _mixed(what: str, of: Callable[[Part], str]) -> Callable[[Sequence[Part]], Iterator[str]]:
    def check(parts: Sequence[Part]) -> Iterator[str]:
        """A file without rows has nothing that could be mixed up."""
        values = {of(part): part.name for part in reversed(parts) if part.rows}
        if len(values) > 1:
            yield f"mixed {what}: " + "; ".join(f"{value} in {name}" for value, name in values.items())

    return check


CHECKS: dict[str, Callable[[Sequence[Part]], Iterator[str]]] = {
    "duplicates": duplicates,
    "gaps": gaps,
    "commits": _mixed("commits", lambda part: part.commit),
    "versions": _mixed("versions", lambda part: part.versions),
    "gpus": _mixed("GPU models", lambda part: part.models),
}


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
