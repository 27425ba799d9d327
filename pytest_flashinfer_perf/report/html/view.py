"""What the page shows, as its template and its script ask for it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.report import host, story
from pytest_flashinfer_perf.report.heat_map import HeatMap, heat_map
from pytest_flashinfer_perf.report.html import charts
from pytest_flashinfer_perf.report.runs import Row, Run
from pytest_flashinfer_perf.report.story import CaseHistory, Comparison, Support
from pytest_flashinfer_perf.report.verdicts import ShownVerdict
from pytest_flashinfer_perf.runs import formatting, host_time
from pytest_flashinfer_perf.runs.formatting import duration, grouped

# Shown elsewhere, or too long for a list of facts.
NOT_A_FACT = (
    "case",
    "params",
    "samples",
    "rounds",
    "kernels",
    "cycles_per_call",
    "sm_ghz_per_call",
    host_time.FIELD,
    "repro",
    "repro_upstream",
)
FACTS_OF_HOST = ("host_us", "plan_us", "waits", "allocations", "synchronisations", "copies_to_host")


@dataclass(frozen=True)
class Figure:
    """A device's roofline: which points it has not, and whose roofs."""

    place: str
    name: str
    spec: charts.Spec
    roofs: Sequence[charts.Spec]
    points: Sequence[charts.Spec]
    left_out: int
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class View:
    runs: tuple[Run, ...]
    judged: Mapping[str, ShownVerdict]

    @functools.cached_property
    def outcomes(self) -> list[CaseHistory]:
        return story.outcomes(self.runs)

    @functools.cached_property
    def devices(self) -> dict[str, str]:
        return story.devices(self.outcomes)

    @property
    def title(self) -> str:
        """The machine."""
        return ", ".join(self.devices.values()) or "Nothing measured"

    @property
    def sections(self) -> list[tuple[str, str]]:
        trend = [("trend", "Trend")] if self.trends else []
        return [
            ("answer", "Answer"),
            *trend,
            ("roofline", "Roofline"),
            ("backends", "Backends"),
            *([("host", "Host")] if self.host_tables else []),
            ("cases", "Cases"),
            ("support", "Support"),
        ]

    @property
    def answer(self) -> story.Summary:
        return story.answer(self.runs, self.outcomes, self.judged)

    @functools.cached_property
    def host_tables(self) -> dict[str, host.Table]:
        """What calls cost the host; nothing of a CPU."""
        return host.tables(self._measured)

    @functools.cached_property
    def plans(self) -> list[dict[str, Any]]:
        return host.plans_over_batches(self._measured)

    @property
    def _measured(self) -> list[Row]:
        return [one.entry for one in self.outcomes if one.measured]

    @property
    def backends(self) -> list[str]:
        return list(dict.fromkeys(one.backend for one in self.outcomes if one.measured and one.backend))

    @property
    def all_backends(self) -> list[str]:
        return sorted({one.backend for one in self.outcomes if one.backend})

    @property
    def colours(self) -> dict[str, str]:
        return charts.palette(self.backends)

    @property
    def routines(self) -> list[str]:
        return list(dict.fromkeys(one.routine for one in self.outcomes))

    @property
    def comparisons(self) -> list[tuple[Comparison, HeatMap | None]]:
        return [(comparison, heat_map(comparison)) for comparison in story.comparisons(self.outcomes)]

    @property
    def support(self) -> list[tuple[str, list[Support]]]:
        return list(grouped(story.support(self.outcomes), lambda one: one.routine))

    @property
    def looked_at(self) -> str:
        """Every status but that of a skip."""
        return " ".join(sorted({one.status for one in self.outcomes} - {"skipped"}))

    @property
    def others(self) -> int:
        return sum(run.others for run in self.runs)

    @property
    def fallbacks(self) -> list[str]:
        """Why times are not from the best instrument, where they are not."""
        said = (one.entry["fallback"] for one in self.outcomes if one.measured)
        return list(dict.fromkeys(sentence for sentence in said if sentence))

    @property
    def provenance(self) -> dict[str, list[str]]:
        """A line for each thing that any run says of itself."""
        said = [story.provenance(run) for run in self.runs]
        names = dict.fromkeys(name for one in said for name in one)
        return {name: [one.get(name, "") for one in said] for name in names}

    def verdict(self, one: CaseHistory) -> str:
        return self.judged[one.case].verdict if one.case in self.judged else "not judged"

    def spark(self, one: CaseHistory) -> str:
        """The medians as a line of 100 by 20, the slowest on top."""
        medians = [row["median"] for _, row in one.history]
        low, high = min(medians), max(medians)
        step, scale = 100 / (len(medians) - 1), 20 / ((high - low) or 1)
        return " ".join(f"{i * step:.1f},{20 - (m - low) * scale:.1f}" for i, m in enumerate(medians))

    @property
    def trends(self) -> list[tuple[int, CaseHistory]]:
        """Cases that were measured more than once, what got slowest first."""
        seen = [(i, one) for i, one in enumerate(self.outcomes) if len(one.history) > 1]
        return sorted(seen, key=lambda pair: -pair[1].change)

    @functools.cached_property
    def figures(self) -> list[Figure]:
        return [self._figure(place, name) for place, name in self.devices.items()]

    def _figure(self, place: str, name: str) -> Figure:
        here = [(i, one) for i, one in enumerate(self.outcomes) if one.place == place and one.measured]
        points = [self._point(i, one) for i, one in here if one.entry["flops"] and one.entry["bytes"]]
        roofs = next((run.roofs[place] for run in reversed(self.runs) if place in run.roofs), {})
        dtypes = [one.entry.get("flops_dtype") or "" for _, one in here]
        sentences = tuple(charts.sentence(source, roof) for source, roof in roofs.items())
        plot = charts.RooflineChart(tuple(self.backends), points, roofs, dtypes)
        return Figure(
            place, name, plot.spec() if points else {}, plot.roofs(), points, len(here) - len(points), sentences
        )

    def _point(self, index: int, one: CaseHistory) -> charts.Spec:
        """Under the names that a reader sees when the mouse is over it."""
        row = one.entry
        return {
            "id": index,
            "routine": one.routine,
            "intensity": _short(row["flops"] / row["bytes"]),
            "tflops": _short(row["tflops"]),
            "backend": one.backend or story.OWN,
            "case": one.case,
            "median": duration(row["median"]),
            "rate": f"{formatting.rate(row['tflops'])} TFLOP/s, {formatting.rate(row['tb_per_sec'])} TB/s",
            "roof": f"{formatting.rate(row['sol_pct'])} %, {row['bound']} bound" if row["sol_pct"] else "not known",
            "status": one.status,
            "again": row.get("repro") or f"pytest '{one.case}'",
        }

    def data(self) -> dict[str, Any]:
        """What the script needs; kernels have long names, and many cases the same."""
        names: dict[str, int] = {}
        return {
            "cases": [_details(one, names) for one in self.outcomes],
            "kernels": list(names),
            "colours": self.colours,
            "figures": {f.place: {"spec": f.spec, "roofs": f.roofs, "points": f.points} for f in self.figures},
            "plans": self.plans,
            "trend": [step for i, one in self.trends for step in _steps(i, one)],
            "specs": {name: spec() for name, spec in charts.SPECS.items()},
        }


def _details(one: CaseHistory, names: dict[str, int]) -> dict[str, Any]:
    row = one.entry
    return {
        "case": one.case,
        "backend": formatting.named(row),
        "status": one.status,
        "reason": row.get("reason"),
        "median": duration(row["median"]) if one.measured else None,
        "facts": list(_facts(row)),
        "repro": row.get("repro"),
        "upstream": row.get("repro_upstream"),
        "samples": [_short(1e6 * sample) for sample in row.get("samples") or ()],
        "cycles": [_short(cycles) for cycles in row.get("cycles_per_call") or ()],
        "ghz": [_short(ghz) for ghz in row.get("sm_ghz_per_call") or ()],
        "kernels": [names.setdefault(kernel, len(names)) for kernel in row.get("kernels") or ()],
        "history": list(_steps(0, one)),
    }


def _facts(row: Row) -> Iterator[tuple[str, str]]:
    """Fields by the names that docs/row.md explains, then the parameters."""
    said = {name: value for name, value in row.items() if name not in NOT_A_FACT}
    on_host = {name: value for name, value in (row.get(host_time.FIELD) or {}).items() if name in FACTS_OF_HOST}
    for name, value in {**said, **on_host, **row.get("params", {})}.items():
        if value not in (None, "", []):
            yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def _steps(index: int, one: CaseHistory) -> Iterator[dict[str, Any]]:
    first = one.history[0][1]["median"] if one.history else 1.0
    for run, row in one.history:
        ratio = row["median"] / first
        yield {
            "id": index,
            "case": one.case,
            "run": run.name,
            "us": _short(1e6 * row["median"]),
            "median": duration(row["median"]),
            "ratio": _short(ratio),
            "change": f"{ratio - 1:+.2%}",
        }


def _short(value: float) -> float:
    """Five digits are more than any plot shows, and keep the page small."""
    return float(f"{value:.5g}")
