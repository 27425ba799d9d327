"""The report of the tuner: what each way to choose costs, judged by limits and against an earlier report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.rows.formatting import counted, duration, markdown_table

CaseFound = Mapping[str, Any]  # a case of the file, as `loop.described` makes it
UNFIT = ("wrong", "fails")
FINE, FOUND, INCOMPLETE = 0, 1, 2


@dataclass(frozen=True)
class Finding:
    """A verdict of a case: FAIL and SLOWER fail the command, NOTE does not."""

    verdict: str
    case: str
    sentence: str

    @property
    def fails(self) -> bool:
        return self.verdict != "NOTE"

    @property
    def line(self) -> str:
        return f"{self.verdict} {self.case}: {self.sentence}"


def percent(regret: Sequence[float] | None) -> str:
    if regret is None:
        return "not known"
    low, seen, high = (100 * share for share in regret)
    return f"+{seen:.1f} % ({low:.1f} to {high:.1f})"


def tactic(case: CaseFound, name: str) -> Mapping[str, Any]:
    return next((one for one in case["tactics"] if one["tactic"] == name), {"state": "not offered", "regret": None})


def grouped(case: CaseFound) -> list[tuple[str, str]]:
    """Ways with the tactic of each; fresh tunes that took the same one are told together."""
    tunes = {way: name for way, name in case["ways"].items() if way.startswith("tune ")}
    others = [(way, name) for way, name in case["ways"].items() if way not in tunes]
    each = Counter(tunes.values()).most_common()
    return [*others, *((f"tuned, {number} of {len(tunes)}", name) for name, number in each)]


def outside(case: CaseFound) -> int:
    """How many fresh tunes took a tactic that is not among the best."""
    return sum(way.startswith("tune ") and name not in case["best"] for way, name in case["ways"].items())


def findings(cases: Iterable[CaseFound], limits: Thresholds) -> Iterator[Finding]:
    for case in cases:
        asked = limits.fields([case["case"], f"{case['family']}/{case['case']}"])
        for way, name in grouped(case):
            yield from _of_way(case, way, name, asked.get("max_regret"))
        most = asked.get("max_flips")
        if most is not None and case["flips"] > most:
            sentence = f"max_flips = {most:g}: fresh tunes land in {case['flips'] + 1} sets that can be told apart"
            yield Finding("FAIL", case["case"], sentence)
        yield from _of_replays(case)
        if case.get("written") is False:
            yield Finding("FAIL", case["case"], "the cache file that was written does not lead to its best tactic")


def _of_way(case: CaseFound, way: str, name: str, most: float | None) -> Iterator[Finding]:
    seen = tactic(case, name)
    if seen["state"] in (*UNFIT, "not offered"):
        why = seen.get("why") or "no runner lists it"
        verdict = "NOTE" if seen["state"] == "not offered" else "FAIL"
        yield Finding(verdict, case["case"], f"{way} takes {name}, which is {seen['state']}: {why}")
    elif most is not None and seen["regret"] is not None:
        low, _, high = seen["regret"]
        sentence = f"max_regret = {100 * most:g}%: {way} takes {name}, {percent(seen['regret'])}"
        if high > most:
            yield Finding("FAIL" if low > most else "NOTE", case["case"], sentence)


def _of_replays(case: CaseFound) -> Iterator[Finding]:
    what = {
        "answer": "the tuner answers with another tactic",
        "eager": "other kernels",
        "graph": "other kernels in a graph",
    }
    for way, seen in case["replayed"].items():
        for name, sentence in what.items():
            if seen.get(name) is False:
                yield Finding("FAIL", case["case"], f"{way}, replayed: {sentence} than was timed")
    if case["untuned"]:
        yield Finding("NOTE", case["case"], f"tuning changed nothing: {', '.join(case['untuned'])} took the default")
    for question in case["questions"]:
        for rounded in question["rounded"]:
            yield Finding("NOTE", case["case"], f"{question['op']}: {rounded}")
        for broken in question["broken"]:
            yield Finding("NOTE", case["case"], f"{question['op']}: lists no tactics, {broken}")


def exit_code(cases: Sequence[CaseFound], found: Iterable[Finding]) -> int:
    """1 if a way to choose is too slow or wrong, 2 if a case failed or there was nothing to look at."""
    if any(one.fails for one in found):
        return FOUND
    looked_at = any("tactics" in case for case in cases)
    return INCOMPLETE if not looked_at or any("failed" in case for case in cases) else FINE


def grown(cases: Iterable[CaseFound], before: Iterable[CaseFound]) -> Iterator[Finding]:
    """Against an earlier report: defaults whose regret surely grew, and runners and tactics that vanished."""
    earlier = {case["case"]: case for case in before}
    for case in cases:
        old = earlier.get(case["case"])
        if old is None:
            continue
        now, then = (tactic(one, one["ways"]["default"])["regret"] for one in (case, old))
        if now and then and now[0] > then[2]:
            best = "though the best tactic is as fast" if _best_us(case) <= 1.02 * _best_us(old) else "of another best"
            sentence = f"the default's regret grew from {percent(then)} to {percent(now)}, {best}"
            yield Finding("SLOWER", case["case"], sentence)
        yield from _vanished(case, old)


def _vanished(case: CaseFound, old: CaseFound) -> Iterator[Finding]:
    for what, names in (("runner", _runners), ("tactic", _offered)):
        gone = sorted(names(old) - names(case))
        if gone:
            more = f" and {len(gone) - 3} more" * (len(gone) > 3)
            yield Finding(
                "NOTE", case["case"], f"vanished since: {counted(len(gone), what)}, {', '.join(gone[:3])}{more}"
            )


def _runners(case: CaseFound) -> set[str]:
    return {runner for question in case["questions"] for runner in question["runners"]}


def _offered(case: CaseFound) -> set[str]:
    return {one["tactic"] for one in case["tactics"]}


def _best_us(case: CaseFound) -> float:
    return median_of(tactic(case, case["best"][0])) if case["best"] else 0.0


def median_of(one: Mapping[str, Any]) -> float:
    ordered = sorted(one["seconds"])
    return float(ordered[len(ordered) // 2]) if ordered else 0.0


def transfers(cases: Sequence[CaseFound]) -> list[dict[str, Any]]:
    """What one case's best tactic costs in another that differs in one parameter: a size, or how tokens are routed."""
    made = []
    for here in cases:
        for there in cases:
            flag = _differing(here, there)
            if flag is None or not here["best"]:
                continue
            regret = tactic(there, here["best"][0])["regret"]
            if regret is not None and regret[0] > 0:
                made.append({"best_of": here["case"], "used_in": there["case"], "flag": flag, "regret": regret})
    return sorted(made, key=lambda one: -float(one["regret"][1]))


def _differing(here: CaseFound, there: CaseFound) -> str | None:
    """The one parameter in which two cases of a routine and backend differ."""
    if (here["routine"], here["backend"]) != (there["routine"], there["backend"]):
        return None
    both = here["params"].keys() | there["params"].keys()
    differing = [name for name in both if here["params"].get(name) != there["params"].get(name)]
    return differing[0] if len(differing) == 1 else None


# What is shown, in the terminal and as Markdown.

HEADINGS = ("case", "tactics", "best set", "time", "default", "tuned, worst", "outside the best", "flips", "cache")


def lines(cases: Sequence[CaseFound]) -> Iterator[str]:
    for case in cases:
        states = Counter(one["state"] for one in case["tactics"])
        said = ", ".join(f"{number} {state}" for state, number in states.items())
        yield ""
        yield f"{case['case']}: {counted(len(case['tactics']), 'tactic')} ({said}), {counted(case['rounds'], 'round')}"
        yield f"  best{'':<13}{_set(case)}, {duration(_best_us(case))}"
        for way, name in grouped(case):
            yield f"  {way:<17}{name}: {_cost(case, name)}"
        if any(way.startswith("tune ") for way in case["ways"]):
            yield f"  {'':<17}outside the best set: {outside(case)}, flips between sets: {case['flips']}"
        for one in case["tactics"]:
            if one["state"] in (*UNFIT, "untimed"):
                yield f"  {one['state']:<17}{one['tactic']}: {one['why']}"


def _set(case: CaseFound) -> str:
    shown = ", ".join(case["best"][:4])
    return "{" + shown + f" and {len(case['best']) - 4} more" * (len(case["best"]) > 4) + "}"


def _cost(case: CaseFound, name: str) -> str:
    return "among the best" if name in case["best"] else percent(tactic(case, name)["regret"])


def markdown(cases: Sequence[CaseFound], found: Sequence[Finding]) -> str:
    table = markdown_table(HEADINGS, map(_row, cases))
    verdicts = markdown_table(("verdict", "case", "finding"), ((f.verdict, f.case, f.sentence) for f in found))
    return "\n".join(["## Tactics", "", *table, *(["", "## Findings", "", *verdicts] if found else []), ""])


def _row(case: CaseFound) -> list[str]:
    tunes = [name for way, name in case["ways"].items() if way.startswith("tune ")]
    worst = max(tunes, key=lambda name: (tactic(case, name)["regret"] or [0, 0, 0])[1], default=None)
    cache = case["ways"].get("cache")
    return [
        case["case"],
        str(len(case["tactics"])),
        _set(case),
        duration(_best_us(case)),
        _cost(case, case["ways"]["default"]),
        "-" if worst is None else _cost(case, worst),
        f"{outside(case)} of {len(tunes)}",
        str(case["flips"]) if tunes else "-",
        "-" if cache is None else _cost(case, cache),
    ]
