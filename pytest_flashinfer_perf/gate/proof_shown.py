"""A proof in a terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.proof import FAIR, LEAST_FOUND, MOST_FAILED, MOST_SLOWER, Frequency, Proof, Proved
from pytest_flashinfer_perf.gate.verdict import COULD_NOT_JUDGE, NOTHING_WORSE, WORSE, Judged, Verdict
from pytest_flashinfer_perf.runs.formatting import as_markdown, counted, markdown_table, wrapped

SCHEMA = 1
COLUMNS = ("slower", "faster", "found", "planted", "detects", "sd", "assumed", "ratio")
WIDTHS = (14, 9, 9, 11, 11, 9, 9, 8)
MEANS = {
    NOTHING_WORSE: "the gate keeps its promise here",
    WORSE: "the gate does not keep its promise here",
    COULD_NOT_JUDGE: "the measurement is incomplete",
}


def _aligned(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


HEADINGS = _aligned(COLUMNS)


def lines(proof: Proof) -> Iterator[str]:
    if proof.cases:
        yield HEADINGS
    for case in proof.cases:
        yield case.name
        yield _aligned(_cells(case))
    yield ""
    for sentence in sentences(proof):
        yield from wrapped(sentence)


def _cells(case: Proved) -> tuple[str, ...]:
    called = (_of(case.called(verdict)) for verdict in (Verdict.SLOWER, Verdict.FASTER))
    changes = (words.percent(case.measured), words.percent(case.detectable))
    noises = (f"{100 * case.observed:.2f} %", f"{100 * case.predicted:.2f} %")
    return (*called, _of(case.found), *changes, *noises, f"{case.predicted / case.observed:.2f}")


def _of(tally: Frequency, word: str = "/") -> str:
    return f"{tally.hits}{word}{tally.tries}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def sentences(proof: Proof) -> Iterator[str]:
    """The result in sentences: error rates, their confidence, and what was not measured."""
    if proof.cases:
        yield from _in_all(proof)
        yield from _sure(proof)
        yield from _notes(proof)
    yield from (f"NOT MEASURED: {trouble}" for trouble in proof.troubles)
    yield MEANS[proof.exit_code]


def _in_all(proof: Proof) -> Iterator[str]:
    slower, faster = (proof.called(verdict) for verdict in (Verdict.SLOWER, Verdict.FASTER))
    yield (
        f"identical code: SLOWER in {_of(slower, ' of ')} verdicts ({_percent(MOST_SLOWER)} allowed), "
        f"FASTER in {faster.hits}; exit code 1 in {_of(proof.failed, ' of ')} comparisons "
        f"({_percent(MOST_FAILED)} allowed)"
    )
    if proof.found.tries:
        yield f"extra work: found in {_of(proof.found, ' of ')} verdicts ({_percent(LEAST_FOUND)} wanted)"
    fair = sum(case.is_fair for case in proof.cases)
    of_cases = counted(len(proof.cases), "case")
    yield f"noise: the gate assumed {FAIR[0]} to {FAIR[1]} times what was measured in {fair} of {of_cases}"


def _sure(proof: Proof) -> Iterator[str]:
    slower, found = proof.called(Verdict.SLOWER), proof.found
    bounds = [f"SLOWER below {_percent(slower.upper)}", f"exit code 1 below {_percent(proof.failed.upper)}"]
    bounds += [f"found above {_percent(found.lower)}"] if found.tries else []
    few = counted(proof.failed.independent, "comparison")
    yield f"only {few} of identical code share no process, which shows with 95 % confidence: {', '.join(bounds)}"


def _notes(proof: Proof) -> Iterator[str]:
    for case in proof.cases:
        if not case.asked:
            yield f"not planted, its time is not measured by perf in this process: {case.name}"
        elif not case.is_large_enough:
            planted, threshold = words.percent(case.asked), words.percent(case.threshold)
            yield f"not counted, {planted} was planted where {threshold} is allowed: {case.name}"
        for broken in case.identical[0].broken:
            yield f"broken whatever changed: {case.name}: {broken.sentence}"


def markdown(proof: Proof) -> str:
    return "\n".join(_markdown(proof)) + "\n"


def _markdown(proof: Proof) -> Iterator[str]:
    first, *others = reversed(list(sentences(proof)))
    yield f"### flashinfer-perf prove: {first}"
    for sentence in reversed(others):
        yield ""
        yield as_markdown(sentence)
    if proof.cases:
        yield ""
        yield from markdown_table(("case", *COLUMNS), ((case.name, *_cells(case)) for case in proof.cases))


def document(proof: Proof) -> str:
    in_all = {"slower": proof.called(Verdict.SLOWER), "faster": proof.called(Verdict.FASTER), "found": proof.found}
    made = {
        "flashinfer_perf_proof": SCHEMA,
        "exit_code": proof.exit_code,
        "sentences": list(sentences(proof)),
        "allowed": {"slower": MOST_SLOWER, "exit_1": MOST_FAILED, "found": LEAST_FOUND},
        **{name: _tally(tally) for name, tally in in_all.items()},
        "exit_1": _tally(proof.failed),
        "troubles": list(proof.troubles),
        "cases": [_case(case) for case in proof.cases],
    }
    return json.dumps(made, indent=1, allow_nan=False) + "\n"


def _counts(judged: Sequence[Judged]) -> dict[str, int]:
    return {verdict.value: n for verdict, n in Counter(one.verdict for one in judged).items()}


def _tally(tally: Frequency) -> dict[str, Any]:
    return {
        "hits": tally.hits,
        "tries": tally.tries,
        "independent": tally.independent,
        "upper": tally.upper,
        "lower": tally.lower,
    }


def _case(case: Proved) -> dict[str, Any]:
    """Changes are shares, noises logarithms."""
    return {
        "case": case.name,
        "identical": _counts(case.identical),
        "planted": _counts(case.extended),
        "bound": case.plain[0].throughput.bound,
        "counted": case.is_large_enough,
        "threshold": math.expm1(case.threshold),
        "asked": math.expm1(case.asked),
        "measured": math.expm1(case.measured),
        "detectable": math.expm1(case.detectable),
        "judged_in": case.identical[0].effects[0].seen.domain,
        "sd": case.observed,
        "gate_sd": case.predicted,
        "noise": sorted({judged.effects[0].noise.source for judged in case.identical}),
        "plain_s": [row.median for row in case.plain],
        "planted_s": [row.median for row in case.planted],
    }
