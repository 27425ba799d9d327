"""A report as a page: one file without scripts. Each case is a strip on which every tactic is a point in time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from html import escape as escaped

from pytest_flashinfer_perf.printing import safe
from pytest_flashinfer_perf.rows.formatting import duration
from pytest_flashinfer_perf.tuner.found import CaseFound, Report, TacticFound
from pytest_flashinfer_perf.tuner.report import of_case, transferred

WIDTH, HEIGHT, EDGE, RADIUS = 900, 64, 20, 5
LEAST_SPAN = math.log(1.05)  # a strip of equals is no wider than this, or noise would fill it
STYLE = """
:root { color-scheme: light dark; font: 15px system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { font-size: 1rem; margin: 2rem 0 0; overflow-wrap: anywhere }
svg { width: 100%; height: auto; display: block }
.best { fill: #009e73 } .slower { fill: #2f86d4 } .chosen { fill: none; stroke: #d55e00; stroke-width: 2 }
.set { fill: #009e73; opacity: .15 } line { stroke: currentColor; opacity: .4 }
text { fill: currentColor; font-size: 11px }
.FAIL, .SLOWER { color: #d55e00 } p, li { margin: .2rem 0; overflow-wrap: anywhere }
"""


def html(report: Report) -> str:
    head = f'<meta charset="utf-8"><title>Tactics</title><style>{STYLE}</style>'
    return "\n".join(("<!DOCTYPE html>", f'<html lang="en">{head}', *_body(report), "</html>", ""))


def _body(report: Report) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items() if version)
    yield f"<h1>Tactics</h1>\n<p>{escape(versions)}</p>"
    yield "<p>Each point is a tactic, the shaded ones are the best set; what is chosen has a ring.</p>"
    if report.findings:
        said = (f'<li class="{one.verdict}">{escape(one.line)}</li>' for one in report.findings)
        yield f"<ul>{''.join(said)}</ul>"
    for case in report.cases:
        yield f"<h2>{escape(case.case)}</h2>"
        yield from _strip(case)
        yield f"<pre>{chr(10).join(map(escape, of_case(case)))}</pre>"
    yield from (f"<p>{escape(f'{left.outcome} {left.case}: {left.why}')}</p>" for left in report.left_out)
    yield from (f"<p>{escape(sentence)}</p>" for sentence in transferred(report))


def escape(text: str) -> str:
    """As HTML, of which a name can be no part, on one line."""
    return escaped(safe(text))


def _strip(case: CaseFound) -> Iterator[str]:
    """Times from the fastest to the slowest, on a scale of ratios."""
    timed = [(statistics.median(one.seconds), one) for one in case.tactics if one.seconds]
    if not timed:
        return
    least = min(seconds for seconds, _ in timed)
    span = max(LEAST_SPAN, *(math.log(seconds / least) for seconds, _ in timed))
    at = [(EDGE + (WIDTH - 2 * EDGE) * math.log(seconds / least) / span, seconds, one) for seconds, one in timed]
    yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(case.case)}">'
    yield from _shade([x for x, _, one in at if one.state == "best"])
    yield f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{HEIGHT / 2}" y2="{HEIGHT / 2}"/>'
    chosen = set(case.ways.values())
    for x, seconds, one in at:
        yield from _point(x, seconds, one, is_chosen=one.tactic in chosen)
    yield f'<text x="{EDGE}" y="{HEIGHT - 4}">{duration(least)}</text>'
    slowest = duration(least * math.exp(span))
    yield f'<text x="{WIDTH - EDGE}" y="{HEIGHT - 4}" text-anchor="end">{slowest}</text></svg>'


def _shade(best: Sequence[float]) -> Iterator[str]:
    if best:
        left, right = min(best) - 2 * RADIUS, max(best) + 2 * RADIUS
        yield f'<rect class="set" x="{left:.1f}" y="8" width="{right - left:.1f}" height="{HEIGHT - 26}"/>'


def _point(x: float, seconds: float, one: TacticFound, *, is_chosen: bool) -> Iterator[str]:
    state = "best" if one.state == "best" else "slower"
    said = escape(f"{one.tactic}: {duration(seconds)}" + (f", {one.regret.sentence}" if one.regret else ""))
    where = f'cx="{x:.1f}" cy="{HEIGHT / 2}"'
    yield f'<circle class="{state}" {where} r="{RADIUS}"><title>{said}</title></circle>'
    if is_chosen:
        yield f'<circle class="chosen" {where} r="{RADIUS + 3}"/>'
