"""The page's plots as Vega-Lite specifications, which `report.js` fills with data and colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.api import run_file
from pytest_flashinfer_perf.extensions.reports.story import OWN

Spec = dict[str, Any]

# Told apart by hue and lightness, readable on white and on black; the next backend has another shape too.
COLOURS = ("#2f86d4", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8b6fd6", "#8f8f00", "#b0643c", "#7d8590")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
TALL, LOW = 420, 170
NEAR = 1.15


def palette(backends: Sequence[str]) -> dict[str, str]:
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(backends)}


@dataclass(frozen=True)
class RooflineChart:
    """The roofline chart of one device, with a point for each row, by backend."""

    backends: tuple[str, ...]
    points: Sequence[Spec]
    by_source: Mapping[str, run_file.Roof]
    dtypes: Sequence[str]

    def roofs(self) -> list[Spec]:
        """Corners of each roof, from the memory's slope to the peak of a type that was used."""
        wanted = set(self.dtypes) if self.points else set()
        lines = [(source, roof, d) for source, roof in self.by_source.items() for d in roof.flops_per_s if d in wanted]
        corners = []
        for source, roof, dtype in lines:
            slope, peak = roof.bytes_per_s / 1e12, roof.flops_per_s[dtype] / 1e12
            left, right = self._across()
            for intensity in (left, peak / slope, right):
                here = {"intensity": intensity, "tflops": min(intensity * slope, peak)}
                label = self._label(roof, dtype) if intensity == right and source == "measured" else ""
                corners.append({"roof": f"{source} {dtype}", "source": source, **here, "label": label})
        return corners

    def _label(self, roof: run_file.Roof, dtype: str) -> str:
        """One label for peaks that lie on top of each other, at the highest of them."""
        peaks = {d: rate for d, rate in roof.flops_per_s.items() if d in self.dtypes}
        close = [d for d, rate in peaks.items() if NEAR > rate / peaks[dtype] > 1 / NEAR]
        return ", ".join(close) if dtype == max(close, key=lambda d: peaks[d]) else ""

    def _across(self) -> tuple[float, float]:
        """The range from left of the first point to right of the last ridge."""
        ridges = [peak / roof.bytes_per_s for roof in self.by_source.values() for peak in roof.flops_per_s.values()]
        intensities = [point["intensity"] for point in self.points]
        return min(intensities) / 2, max(*intensities, *ridges, 0.0) * 3

    def spec(self) -> Spec:
        rates = [point["tflops"] for point in self.points]
        up = (min(rates) / 2, max(*rates, *(corner["tflops"] for corner in self.roofs()), 0.0) * 2)
        across = _log("intensity", "FLOP per byte of memory traffic", self._across())
        axes = {"x": across, "y": _log("tflops", "TFLOP/s", up)}
        dash = {"field": "source", "scale": {"domain": ["measured", "datasheet"], "range": [[1, 0], [5, 4]]}}
        roofs = {
            "data": {"name": "roofs"},
            "mark": {"type": "line", "style": "roof"},
            "encoding": {**axes, "detail": {"field": "roof"}, "strokeDash": {**dash, "legend": None}},
        }
        return {
            "height": TALL,
            "params": [{"name": "routine", "value": ""}],
            "layer": [roofs, _label_layer(axes), self._point_layer(axes)],
        }

    def _point_layer(self, axes: Mapping[str, Spec]) -> Spec:
        domain = list(self.backends) or [OWN]
        backend = {"field": "backend", "title": "backend"}
        colour = {"domain": domain, "range": list(palette(domain).values())}
        shape = {"domain": domain, "range": [SHAPES[(i + i // len(COLOURS)) % len(SHAPES)] for i in range(len(domain))]}
        return {
            "data": {"name": "points"},
            "transform": [{"filter": "routine === '' || datum.routine === routine"}],
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.85, "cursor": "pointer"},
            "encoding": {
                **axes,
                "color": {**backend, "scale": colour},
                "shape": {**backend, "scale": shape},
                "tooltip": [{"field": field, "title": title} for field, title in HOVER.items()],
            },
        }


HOVER = {
    "case": "case",
    "backend": "backend",
    "median": "median",
    "rate": "rate",
    "roof": "of the roof",
    "status": "status",
    "again": "run it again",
}


def sentence(source: str, roof: run_file.Roof) -> str:
    peaks = ", ".join(f"{name} {rate / 1e12:.0f} TFLOP/s" for name, rate in roof.flops_per_s.items())
    return f"{source} {roof.bytes_per_s / 1e12:.2f} TB/s; {peaks}"


def _log(field: str, title: str, domain: tuple[float, float]) -> Spec:
    scale = {"type": "log", "domain": list(domain), "nice": False}
    axis = {"format": ",~r", "tickCount": 5}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _label_layer(axes: Mapping[str, Spec]) -> Spec:
    """Types stand at the right end of what was measured; all the numbers are in the caption."""
    return {
        "data": {"name": "roofs"},
        "transform": [{"filter": "datum.label"}],
        "mark": {"type": "text", "style": "label", "align": "left", "dx": 5},
        "encoding": {**axes, "text": {"field": "label"}},
    }


def histogram() -> Spec:
    time = {"field": "us", "bin": {"maxbins": 40}}
    count = {"aggregate": "count", "title": "calls"}
    median = {"field": "us", "aggregate": "median", "type": "quantitative"}
    return {
        "height": LOW,
        "data": {"name": "samples"},
        "layer": [
            {
                "mark": {"type": "bar", "style": "sample"},
                "encoding": {
                    "x": {**time, "title": "time of a call, us"},
                    "y": {**count, "type": "quantitative"},
                    "tooltip": [{**time, "title": "us"}, count],
                },
            },
            {"mark": {"type": "rule", "style": "median"}, "encoding": {"x": median}},
        ],
    }


def by_call(name: str, field: str, title: str) -> Spec:
    """A reading of each call, in the order in which they were made."""
    call = {"field": "call", "type": "quantitative", "title": "call"}
    reading = {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}}
    return {
        "height": LOW,
        "data": {"name": name},
        "mark": {"type": "point", "filled": True, "size": 24, "style": "sample"},
        "encoding": {"x": call, "y": reading, "tooltip": [{"field": "call"}, {"field": field, "title": title}]},
    }


def specs() -> dict[str, Spec]:
    return {
        "histogram": histogram(),
        "order": by_call("samples", "us", "us"),
        "cycles": by_call("clocks", "cycles", "SM cycles"),
        "clock": by_call("clocks", "ghz", "SM clock, GHz"),
    }
