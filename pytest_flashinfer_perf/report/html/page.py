"""The report as a page: one self-contained file, with its data and JavaScript libraries.

A `View` is what its template reads; `View.data` is what its script reads, as JSON. What a report tells is `story.py`'s,
its plots are `charts.py`'s.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.models import budget
from pytest_flashinfer_perf.models.budget import Budget
from pytest_flashinfer_perf.report import host, story
from pytest_flashinfer_perf.report.html import charts
from pytest_flashinfer_perf.report.html.charts import HeatMap, heat_map
from pytest_flashinfer_perf.report.story import BackendTable, CaseHistory, ShownVerdict, Support
from pytest_flashinfer_perf.rows import formatting
from pytest_flashinfer_perf.rows.formatting import duration, grouped
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run, Unmeasured

SECTIONS = ("answer", "trend", "step", "roofline", "backends", "host", "cases", "support")
# Shown elsewhere, or too long for a list of facts.
NOT_A_FACT = ("case", "kernels", "tactics", "cycles_per_call", "sm_ghz_per_call", "host", "repro", "repro_upstream")
FACTS_OF_HOST = ("host_us", "plan_us", "waits", "allocations", "synchronisations", "copies_to_host")


@dataclass(frozen=True)
class Figure:
    """The text of a device's roofline: the points that it lacks, and where its roofs are from."""

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
        """The ids and titles of those that have something to show."""
        may_be_empty = {"trend": self.trends, "step": self.steps, "host": self.host_tables}
        return [(name, name.capitalize()) for name in SECTIONS if may_be_empty.get(name, True)]

    @property
    def answer(self) -> story.Summary:
        return story.answer(self.runs, self.outcomes, self.judged)

    @functools.cached_property
    def steps(self) -> list[Budget]:
        return budget.of_runs(self.runs)

    def step_table(self, shown: Budget) -> list[tuple[str, ...]]:
        """Its headings first."""
        return [] if shown.trouble else [budget.headings(shown), *budget.table(shown)]

    def below_step(self, shown: Budget) -> list[str]:
        return list(budget.below(shown))

    @functools.cached_property
    def host_tables(self) -> dict[str, host.Table]:
        """The host-time tables; empty for a run on a CPU."""
        return host.tables(self._measured)

    @functools.cached_property
    def plans(self) -> list[dict[str, Any]]:
        return host.plans_over_batches(self._measured)

    @property
    def _measured(self) -> list[Row]:
        return [one.row for one in self.outcomes if one.row]

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
    def comparisons(self) -> list[tuple[BackendTable, HeatMap | None]]:
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
        return sum(len(run.rows) - len(run.ours) for run in self.runs)

    @property
    def fallbacks(self) -> list[str]:
        """Why times are not from the best instrument, where they are not."""
        sentences = (one.row.provenance.fallback for one in self.outcomes if one.row)
        return list(dict.fromkeys(sentence for sentence in sentences if sentence))

    @property
    def provenance(self) -> dict[str, list[str]]:
        return story.provenance(self.runs)

    def verdict(self, one: CaseHistory) -> str:
        return self.judged[one.case].verdict if one.case in self.judged else "not judged"

    def spark(self, one: CaseHistory) -> str:
        """The medians as a line of 100 by 20, the slowest on top."""
        medians = [row.median for _, row in one.history]
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
        here = [(i, one, one.row) for i, one in enumerate(self.outcomes) if one.place == place and one.row]
        points = [point for i, one, row in here if (point := self._point(i, one, row))]
        roofs = next((run.roofs[place] for run in reversed(self.runs) if place in run.roofs), {})
        dtypes = [row.throughput.flops_dtype or "" for _, _, row in here]
        sentences = tuple(charts.sentence(source, roof) for source, roof in roofs.items())
        plot = charts.RooflineChart(tuple(self.backends), points, roofs, dtypes)
        return Figure(
            place, name, plot.spec() if points else {}, plot.roofs(), points, len(here) - len(points), sentences
        )

    def _point(self, index: int, one: CaseHistory, row: Row) -> charts.Spec | None:
        """Under the names that a reader sees when the mouse is over it; none for a case without its work."""
        work = row.throughput
        if not (work.flops and work.bytes and work.tflops):
            return None
        return {
            "id": index,
            "routine": one.routine,
            "intensity": _short(work.flops / work.bytes),
            "tflops": _short(work.tflops),
            "backend": one.backend or story.OWN,
            "case": one.case,
            "median": duration(row.median),
            "rate": f"{formatting.rate(work.tflops)} TFLOP/s, {formatting.rate(work.tb_per_sec)} TB/s",
            "roof": f"{formatting.rate(work.sol_pct)} %, {work.bound} bound" if work.sol_pct else "not known",
            "status": one.status,
            "again": row.identity.repro or f"pytest '{one.case}'",
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
    if isinstance(one.entry, Unmeasured):
        nothing: dict[str, list[float]] = {name: [] for name in ("samples", "cycles", "ghz", "kernels")}
        seen = {"backend": one.backend, "median": None, "facts": list(_facts(one.entry.written())), **nothing}
    else:
        seen = _measured(one.entry, names)
    return {
        "case": one.case,
        "status": one.status,
        "reason": None if one.row else one.reason,
        "repro": one.identity.repro,
        "history": list(_steps(0, one)),
        **seen,
    }


def _measured(row: Row, names: dict[str, int]) -> dict[str, Any]:
    clocks = row.clocks
    own = {"median": row.median, "mean": row.stats.mean, "stddev": row.stats.stddev, "spread": row.spread}
    of_host = {name: getattr(row.host, name) for name in FACTS_OF_HOST} if row.host else {}
    return {
        "backend": formatting.named(row),
        "median": duration(row.median),
        "facts": list(_facts({**row.extra_info(), **own, **of_host, **row.params})),
        "upstream": row.setup.repro_upstream,
        "samples": [_short(1e6 * sample) for sample in row.stats.data],
        "cycles": list(map(_short, clocks.cycles_per_call or ())),
        "ghz": list(map(_short, clocks.sm_ghz_per_call or ())),
        "kernels": [names.setdefault(kernel, len(names)) for kernel in row.trace.kernels or ()],
    }


def _facts(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields by the names that docs/row.md explains, then the parameters."""
    for name, value in fields.items():
        if name not in NOT_A_FACT and value not in (None, "", []):
            yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def _steps(index: int, one: CaseHistory) -> Iterator[dict[str, Any]]:
    for run, row in one.history:
        ratio = row.median / one.history[0][1].median
        yield {
            "id": index,
            "case": one.case,
            "run": run.name,
            "us": _short(1e6 * row.median),
            "median": duration(row.median),
            "ratio": _short(ratio),
            "change": f"{ratio - 1:+.2%}",
        }


def _short(value: float) -> float:
    """Five digits are more than any plot shows, and keep the page small."""
    return float(f"{value:.5g}")


def missing() -> str | None:
    """What a page is made with is an extra of its own."""
    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        return f"an HTML report needs {error.name}: pip install jinja2 vl-convert-python"
    return None


def write(path: Path, runs: Sequence[Run]) -> None:
    write_whole(path, render(runs))


def render(runs: Sequence[Run]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    shown_by = (formatting.duration, formatting.spread, formatting.rate, formatting.named)
    environment.filters |= {function.__name__: function for function in shown_by}
    here = resources.files(__package__)
    script = _libraries() + here.joinpath("report.js").read_text(encoding="utf-8")
    style = here.joinpath("report.css").read_text(encoding="utf-8")
    # The only script that the page's own policy lets run.
    script_hash = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    view = View(tuple(runs), story.of(runs))
    return environment.get_template("page.html.j2").render(
        view=view, script=script, script_hash=script_hash, style=style
    )


@functools.cache
def _libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; the tag that holds it must not end early."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script") + "\n"
