"""What must be equal in two runs (GPU, driver, settings), and what `--perf-gate-allow` permits to differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError, unknown
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run


@dataclass(frozen=True)
class Facet:
    """A property to compare. If it may differ, the threshold grows by `cost`, a share of the time."""

    name: str
    of: Callable[[Run, Row], Any]
    means: str
    cost: float = 0.0
    none_is_unknown: bool = False  # as in files of older versions, which are compared all the same


REQUIREMENTS = "requirements"
FACETS = (
    Facet("model", lambda run, row: run.model(row), "another model of GPU or CPU"),
    Facet("gpu", lambda _, row: row.identity.gpu_uuid, "another card; of one model they are 2-3 % apart", 0.03),
    Facet("driver", lambda run, _: run.driver, "another driver"),
    Facet(
        "instrument", lambda _, row: row.provenance.instrument, "another instrument: events add 3 us to CUPTI's times"
    ),
    Facet("cold-l2", lambda _, row: row.provenance.cold_l2, "another cold-L2 mode: up to 15 % for a short kernel"),
    Facet("cuda-graph", lambda _, row: row.provenance.cuda_graph, "CUDA graphs in one, launches in the other"),
    Facet(
        "ranks",
        lambda _, row: row.provenance.ranks and row.provenance.ranks.conditions,
        "another number of processes, another transport, or times that contain how late a process came",
    ),
    Facet("seed", lambda _, row: row.setup.seed, "other inputs"),
    Facet(
        REQUIREMENTS,
        lambda _, row: _completeness(row),
        "FlashInfer without what it requires silently runs other kernels, or has none",
        none_is_unknown=True,
    ),
)
LIBRARY = Facet("library", lambda run, _: _spelt(run.libraries), "another FlashInfer, torch, CUDA or cuDNN")
OTHERS = {
    "missing": "cases of the baseline that this run has not",
    "deselected": "those of them that -k, -m or --deselect left out",
    "invalid": "rows that cannot be judged, but never wrong answers",
}
ALLOWABLE = {**{facet.name: facet.means for facet in (*FACETS, LIBRARY)}, **OTHERS}


class AllowError(FlashinferPerfError):
    """An unknown name in `--perf-gate-allow`."""


def allowed(text: str) -> frozenset[str]:
    names = text.replace(",", " ").split()
    for name in names:
        if name not in ALLOWABLE:
            raise AllowError(f"--perf-gate-allow: {unknown(name, ALLOWABLE)}")
    return frozenset(names)


@dataclass(frozen=True)
class Difference:
    facet: Facet
    base: Any
    head: Any

    @property
    def sentence(self) -> str:
        return f"{self.facet.name}: {self.base} in the baseline, {self.head} here ({self.facet.means})"


def differences(
    base: Iterable[tuple[Run, Row]], head: Iterable[tuple[Run, Row]], *, same_library: bool
) -> list[Difference]:
    """Facets that are not one and the same in all processes of both sides."""
    base, head = list(base), list(head)
    asked = (*FACETS, LIBRARY) if same_library else FACETS
    seen = ((facet, _values(facet, base), _values(facet, head)) for facet in asked)
    return [Difference(f, _all(b), _all(h)) for f, b, h in seen if len(set(b) | set(h)) > 1]


def _values(facet: Facet, rows: Iterable[tuple[Run, Row]]) -> list[Any]:
    values = dict.fromkeys(facet.of(run, row) for run, row in rows)
    return [value for value in values if not (facet.none_is_unknown and value is None)]


def _all(values: list[Any]) -> str:
    return " and ".join("none" if value is None else str(value) for value in values) or "unknown"


def _completeness(row: Row) -> str | None:
    unmet = row.library.unmet
    return None if unmet is None else f"without {', '.join(sorted(unmet))}" if unmet else "complete"


def _spelt(libraries: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in libraries.items() if version is not None)


def changed_libraries(base: Iterable[Run], head: Iterable[Run]) -> list[str]:
    """Not refused unless it is asked for: an upgrade is what many comparisons are made for."""
    before, after = _spellings(base), _spellings(head)
    return [
        f"{name} {before[name]} -> {after[name]}" for name in before if name in after and before[name] != after[name]
    ]


def _spellings(runs: Iterable[Run]) -> dict[str, str]:
    seen: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, version in run.libraries.items():
            if version is not None:
                seen.setdefault(name, {})[str(version)] = None
    return {name: " and ".join(versions) for name, versions in seen.items()}
