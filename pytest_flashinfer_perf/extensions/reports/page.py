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
from typing import TYPE_CHECKING, Any

from pytest_flashinfer_perf.api import Row, Run, file_io, formatting, run_file
from pytest_flashinfer_perf.extensions.reports import backends, charts, sections, story
from pytest_flashinfer_perf.extensions.reports.backends import BackendTable
from pytest_flashinfer_perf.extensions.reports.sections import Section
from pytest_flashinfer_perf.extensions.reports.story import CaseOutcome

if TYPE_CHECKING:
    import jinja2

# Shown elsewhere, or too long for a list of facts.
NOT_A_FACT = (
    *("case", "kernels", "tactics", "repro", "repro_upstream", "requirements"),
    *("cycles_per_call", "sm_ghz_per_call", "busy_per_call"),
)


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

    @functools.cached_property
    def outcomes(self) -> list[CaseOutcome]:
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
        names = ["answer", *(one.name for one in self.added if one.is_answer), "roofline", "backends"]
        names += [*(one.name for one in self.added if not one.is_answer), "cases"]
        return [(name, name.capitalize()) for name in names]

    @functools.cached_property
    def answer(self) -> story.Summary:
        return story.answer(self.outcomes)

    @functools.cached_property
    def added(self) -> list[Section]:
        return sections.of(self.runs)

    @functools.cached_property
    def backends(self) -> list[str]:
        return list(dict.fromkeys(one.backend for one in self.outcomes if one.measured and one.backend))

    @property
    def all_backends(self) -> list[str]:
        return sorted({one.backend for one in self.outcomes if one.backend})

    @functools.cached_property
    def colours(self) -> dict[str, str]:
        return charts.palette(self.backends)

    @property
    def routines(self) -> list[str]:
        return list(dict.fromkeys(one.routine for one in self.outcomes))

    @functools.cached_property
    def tables(self) -> list[BackendTable]:
        return list(backends.comparisons(self.outcomes))

    @property
    def winners(self) -> list[str]:
        return backends.answers(self.tables)

    @property
    def left(self) -> list[tuple[str, list[tuple[int, str]]]]:
        return list(story.left(self.outcomes))

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

    def _point(self, index: int, one: CaseOutcome, row: Row) -> charts.Spec | None:
        """The point of a row in the chart; None for a row without work."""
        work = row.throughput
        if not (work.flops and work.bytes and work.tflops):
            return None
        return {
            "id": index,
            "routine": one.routine,
            "intensity": short(work.flops / work.bytes),
            "tflops": short(work.tflops),
            "backend": one.backend or story.OWN,
            "rate": f"{formatting.rate(work.tflops)} TFLOP/s, {formatting.rate(work.tb_per_sec)} TB/s",
            "roof": f"{formatting.rate(work.sol_pct)} %, {work.bound} bound" if work.sol_pct else "not known",
        }

    def data(self) -> dict[str, Any]:
        """The data of the page's script. Kernels have long names, which many cases share."""
        names: dict[str, int] = {}
        return {
            "cases": _columns([_details(one, names) for one in self.outcomes]),
            "facts": _columns([dict(_facts(one)) for one in self.outcomes]),
            "kernels": list(names),
            "figures": {f.place: {"spec": f.spec, "roofs": f.roofs, "points": f.points} for f in self.figures},
            "palette": charts.COLOURS,
            "specs": charts.specs(),
        }


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of all rows by name; a single one where it is that of each row."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: values[:1] if values.count(values[0]) == len(values) else values for name, values in columns.items()}


def _details(one: CaseOutcome, names: dict[str, int]) -> dict[str, Any]:
    row = one.row
    shown = {
        "case": one.case,
        "backend": one.backend,
        "status": one.status,
        "reason": None if row else one.reason,
        "repro": one.entry.identity.repro,
    }
    return shown if row is None else {**shown, **_measured(row, names)}


def _measured(row: Row, names: dict[str, int]) -> dict[str, Any]:
    return {
        "backend": formatting.named(row),
        "median": formatting.duration(row.median),
        "upstream": row.setup.repro_upstream,
        "samples": [short(1e6 * sample) for sample in row.stats.data],
        "cycles": [short(cycles) for cycles in row.clocks.cycles_per_call or ()],
        "ghz": [round(ghz, 3) for ghz in row.clocks.sm_ghz_per_call or ()],  # clocks go in multiples of 15 MHz
        "kernels": [names.setdefault(kernel, len(names)) for kernel in row.trace.kernels or ()],
    }


def _facts(one: CaseOutcome) -> Iterator[tuple[str, str]]:
    """Fields by the names that docs/row.md explains, then the parameters."""
    for name, value in _fields(one.entry).items():
        if name not in NOT_A_FACT and value not in (None, "", []):
            yield name, _text(value)


def _fields(entry: Row | run_file.Unmeasured) -> dict[str, Any]:
    if isinstance(entry, run_file.Unmeasured):
        return entry.written()
    placements = [formatting.duration(one.median) for one in entry.provenance.placements if one.median]
    own = {name: getattr(entry.stats, name) for name in ("median", "mean", "stddev")}
    own |= {"spread": entry.spread, "placements": placements}
    return {**_flat(entry.extra_info()), **own, **entry.params}


def _flat(info: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object stand beside the others."""
    objects = [one for one in info.values() if isinstance(one, Mapping)]
    alone = {name: value for name, value in info.items() if not isinstance(value, Mapping)}
    return {name: value for one in (alone, *objects) for name, value in one.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def short(value: float) -> float:
    """Five digits are more than any plot shows, and keep the page small."""
    return float(f"{value:.5g}")


def missing() -> str | None:
    """A sentence if the libraries are missing by which a page is made; they are an extra."""
    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        return f"an HTML report needs {error.name}: pip install jinja2 vl-convert-python"
    return None


def write(path: Path, runs: Sequence[Run]) -> None:
    absent = missing()
    if absent:
        raise run_file.RunError(absent)
    file_io.write_whole(path, render(runs))


def render(runs: Sequence[Run]) -> str:
    template, script = _template(), _libraries() + _file("report.js")
    return template.render(view=View(tuple(runs)), script=script, style=_file("report.css"))


def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    shown_by = (formatting.duration, formatting.spread, formatting.rate, formatting.named, short, digest)
    environment.filters |= {function.__name__: function for function in shown_by}
    return environment.get_template("page.html.j2")


def digest(script: str) -> str:
    """The digest by which a page's own policy names the only scripts that may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; the tag that holds it must not end early."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script") + "\n"
