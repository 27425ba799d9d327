"""Known changes of real releases, found: python tests/acceptance/museum.py FOLDER

museum.toml declares the exhibits: a change that is known, the releases before and after it, cases that show it. Each is
taken through `ab`, through `bisect --releases` where it says what to find, or through `tune-report` where it is one of
the tuner's choices. Options are the default ones, but for those that stand among the cases. Controls are pairs of
releases without a known change: whatever is SLOWER or FASTER there by the same kernels is invented. Each release has a
folder of its own; all are installed and their modules compiled first, side by side. Interrupted, the same command goes
on. FOLDER/museum.md is the record, evidence/museum-h200.md if it is one of an H200; its second paragraph is README's.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.extensions.bisect import histories
from pytest_flashinfer_perf.extensions.bisect.histories import PointVerdict
from pytest_flashinfer_perf.extensions.bisect.places import PREBUILD, Installed, installer
from pytest_flashinfer_perf.extensions.bisect.search import COMMAND, FINDINGS, RESULT
from pytest_flashinfer_perf.extensions.tuner.found import read as read_report
from pytest_flashinfer_perf.files import read_json, write_json, write_whole
from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.gate.verdict import Verdict
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.launch.processes import Environment
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.formatting import counted, last_lines
from pytest_flashinfer_perf.rows.run_file import Run, RunError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).with_suffix(".toml")
OURS = Environment("museum", (sys.executable, "-m", "pytest_flashinfer_perf"))
CALLS = "museum_calls.py"  # has no cases, whose modules could be compiled before they are called
CHANGED = ("SLOWER", "FASTER")
TUNER, TUNED = "tuner", "tune-report.json"
REPORT = "import sys; from pytest_flashinfer_perf import cli; sys.exit(cli.main(['tune-report', *sys.argv[1:]]))"

Answer = Literal["found", "missed", "stopped", "no case", "clean", "invented", "not yet"]


@dataclass(frozen=True)
class Exhibit:
    """`ab` is to give one of the cases this verdict, in words or kernels that match `says`, and none of `never`.

    `find` is what bisect searches for, and the later release is what it is to name. A finding of the later release's
    `tune-report` is to match `tuner_says`, with that of the earlier one as its base. One without all is a control.
    """

    name: str
    what: str
    releases: tuple[str, str]
    cases: tuple[str, ...] = ()
    without_case: str = ""
    verdict: str = ""
    says: str = ""
    never: tuple[str, ...] = ()
    find: str = ""
    tuner_says: str = ""

    @property
    def is_by_ab(self) -> bool:
        return bool(self.verdict or self.says) or self.is_control

    @property
    def is_control(self) -> bool:
        return not (self.verdict or self.says or self.find or self.tuner_says or self.without_case)


@dataclass(frozen=True)
class Shown:
    """What came of an exhibit, of which `judged` cases were compared, and of a control's so many `invented`."""

    name: str
    answer: Answer
    sentence: str
    seconds: float = 0.0
    judged: int = 0
    invented: int = 0
    card: str = ""


NOT_YET = Shown("", "not yet", "")


def main() -> None:
    own, rest = processes.split(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, usage="museum.py FOLDER [OPTIONS] -- PYTEST_ARGS")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--exhibits", type=Path, default=DATA)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=())
    parser.add_argument("--wheels", type=Path, metavar="DIR")
    parser.add_argument("--python", default=sys.executable, metavar="CMD")
    args = parser.parse_args(own)
    try:
        exhibits = declared(args.exhibits)
    except (OSError, ValueError, FlashinferPerfError) as error:
        parser.error(f"{args.exhibits}: {error}")
    named = {one.name: one for one in exhibits}
    if unknown := {*args.only} - {*named}:
        parser.error(f"--only: no exhibit is named {' or '.join(sorted(unknown))}")
    chosen = [*(named[name] for name in args.only or named), *(one for one in exhibits if one.without_case)]
    args.folder.mkdir(parents=True, exist_ok=True)
    state = args.folder / "state.json"
    done = {one.name: one for one in fields.read_list(Shown, read_json(state) if state.exists() else [], "state")}
    museum = Museum(args.folder.resolve(), args.python, args.wheels, rest)
    museum.open([one for one in chosen if one.name not in done and not one.without_case])
    for exhibit in chosen:
        if exhibit.name not in done:
            done[exhibit.name] = museum.shown(exhibit)
            write_json(state, [fields.written(one) for one in done.values()])
            print(f"{exhibit.name}: {done[exhibit.name].answer}: {done[exhibit.name].sentence}", flush=True)
        write_whole(args.folder / "museum.md", "\n".join(table(exhibits, done)) + "\n")


def declared(path: Path) -> list[Exhibit]:
    """What a file declares. A field that is misspelled would make an exhibit a control, or one that is never found."""
    document = tomllib.loads(path.read_text())
    known = {"exhibit", "control", *(one.name for one in dataclasses.fields(Exhibit))}
    words = {*document, *(word for entries in document.values() for one in entries for word in one)}
    if words - known:
        raise ValueError(f"nothing is named {' or '.join(sorted(words - known))}")
    shown, controls = (fields.read_list(Exhibit, document.get(kind, []), kind) for kind in ("exhibit", "control"))
    names = [one.name for one in (*shown, *controls)]
    odd = [one.name for one in shown if one.is_control or not {one.verdict, *one.never} <= {"", *Verdict}]
    odd += [one.name for one in controls if not one.is_control] + [one for one in names if names.count(one) > 1]
    if odd or not shown:
        raise ValueError(f"no exhibit, or none that can be: {' or '.join(dict.fromkeys(odd))}")
    return [*shown, *controls]


@dataclass
class Museum:
    """Takes exhibits through the commands. `broken` are the releases that do not import here, with the reason."""

    folder: Path
    python: str
    wheels: Path | None
    arguments: Sequence[str]
    there: dict[str, Environment] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def open(self, exhibits: Sequence[Exhibit]) -> None:
        """Install the releases of these exhibits, and compile what their cases need, all releases at once."""
        python = processes.environment("python", self.python).command
        wheels = {} if self.wheels is None else histories.wheels(self.wheels)
        install = installer(python[: -len(processes.MODULE)], self.wheels)
        places = Installed(self.folder, python, install, {str(one): path.resolve() for one, path in wheels.items()})
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            releases = dict.fromkeys(release for one in exhibits for release in one.releases)
            list(pool.map(partial(self._installed, places), releases))
            suites = [one for one in exhibits if CALLS not in one.cases[0]]
            pairs = [(release, one) for one in suites for release in one.releases if release in self.there]
            if pairs and processes.gpu(self.arguments):
                for line in pool.map(self._compiled, *zip(*pairs, strict=True)):
                    print(line, flush=True)

    def _installed(self, places: Installed, release: str) -> None:
        try:
            self.there[release] = places.prepared("base", release)
        except RunError as error:
            self.broken[release] = f"{release}: {last_lines(str(error), 1)}"

    def _compiled(self, release: str, exhibit: Exhibit) -> str:
        jobs = os.environ.get("MAX_JOBS", str(max(1, (os.cpu_count() or 1) // len(self.there))))
        program = Environment(release, self.there[release].program(PREBUILD) or (), variables={"MAX_JOBS": jobs})
        begun, log = time.monotonic(), self.folder / f"compiled-{release}-{exhibit.name}.log"
        code = processes.started(program, [*exhibit.cases, *self.arguments], log)
        return f"{release}: modules of {exhibit.name} in {time.monotonic() - begun:.0f} s, exit code {code}"

    def shown(self, exhibit: Exhibit) -> Shown:
        if exhibit.without_case:
            return Shown(exhibit.name, "no case", exhibit.without_case)
        there, begun = self.folder / exhibit.name, time.monotonic()
        there.mkdir(exist_ok=True)
        if reasons := [self.broken[one] for one in exhibit.releases if one in self.broken]:
            return Shown(exhibit.name, "stopped", "; ".join(reasons))
        try:
            parts = [self._by_ab(exhibit, there)] if exhibit.is_by_ab else []
            parts += [self._by_bisect(exhibit, there)] if exhibit.find else []
            parts += [self._by_tuner(exhibit, there)] if exhibit.tuner_says else []
        except RunError as error:
            return Shown(exhibit.name, "stopped", str(error), time.monotonic() - begun)
        answer = next((one.answer for one in parts if one.answer == "missed"), parts[0].answer)
        sentence = "; ".join(one.sentence for one in parts)
        return replace(parts[0], answer=answer, sentence=sentence, seconds=_seconds(there))

    def _by_ab(self, exhibit: Exhibit, there: Path) -> Shown:
        output, verdicts = there / "ab", there / "ab" / "verdicts.json"
        if not verdicts.exists():
            shutil.rmtree(output, ignore_errors=True)
            base, head = (shlex.join(self.there[one].command) for one in exhibit.releases)
            words = ["ab", f"--base={base}", f"--head={head}", f"--output={output}"]
            processes.started(OURS, [*words, "--", *exhibit.cases, *self.arguments], there / "ab.log")
        if not verdicts.exists():
            raise RunError(last_lines((there / "ab.log").read_text(), 1))
        runs = {side: read.read(sorted(output.glob(f"pair-*-{side}.json"))) for side in ("base", "head")}
        return judged(exhibit, read_json(verdicts)["cases"], runs)

    def _by_bisect(self, exhibit: Exhibit, there: Path) -> Shown:
        output, log = there / "bisect", there / "bisect.log"
        words = ["bisect", f"--resume={output}"]
        if not (output / COMMAND).exists():
            words = ["bisect", "--releases", *exhibit.releases, f"--find={exhibit.find}", f"--output={output}"]
            words += [f"--python={self.python}", *([f"--wheels={self.wheels}"] if self.wheels else [])]
            words += ["--", *exhibit.cases, *self.arguments]
        if not (output / RESULT).exists():
            processes.started(OURS, words, log)
        if not (output / RESULT).exists():
            told = f"bisect: {last_lines(log.read_text(), 1).strip()}"
            ends = read_json(output / FINDINGS)[0]["cases"].values() if (output / FINDINGS).exists() else ()
            if any(one["answer"] != PointVerdict.SKIP or one["change"] is not None for one in ends):
                return Shown(exhibit.name, "missed", told)
            raise RunError(told)
        trails = read_json(output / RESULT)
        named = dict.fromkeys(" or ".join(one["suspects"]) or "none" for one in trails)
        right = [one for one in trails if one["verified"] and one["suspects"][-1] == exhibit.releases[1]]
        sentence = f"bisect names {', '.join(named)}{''.join(': ' + one['verified']['sentence'] for one in right[:1])}"
        return Shown(exhibit.name, "found" if right else "missed", sentence)

    def _by_tuner(self, exhibit: Exhibit, there: Path) -> Shown:
        base: list[str] = []
        for release in exhibit.releases:
            output, log = there / f"{TUNER}-{release}", there / f"{TUNER}-{release}.log"
            if not (output / TUNED).exists():
                shutil.rmtree(output, ignore_errors=True)
                program = replace(self.there[release], command=self.there[release].program(REPORT) or ())
                words = [f"--output={output}", *base, "--tunes=0", "--", *exhibit.cases, *self.arguments]
                processes.started(program, words, log)
            if not (output / TUNED).exists():
                raise RunError(f"{release}: {last_lines(log.read_text(), 1)}")
            base = [f"--base={output / TUNED}"]
        report = read_report(output / TUNED, "tune-report")
        said = [one for one in report.findings if re.search(exhibit.tuner_says, one.sentence)]
        told = said[0].line if said else f"tune-report: none of {counted(len(report.findings), 'finding')} says it"
        card = f"{report.cases[0].device}, torch {report.versions.get('torch')}" if report.cases else ""
        return Shown(exhibit.name, "found" if said else "missed", told, judged=len(report.cases), card=card)


def judged(exhibit: Exhibit, cases: Sequence[Mapping[str, Any]], runs: Mapping[str, Sequence[Run]]) -> Shown:
    """What `ab` says of an exhibit, or of a control, from its verdicts and the runs of both sides."""
    compared = [case for case in cases if case["effects"]]
    if not compared and exhibit.verdict in ("", *CHANGED):
        raise RunError("; ".join(dict.fromkeys(f"{case['verdict']}: {case['sentence']}" for case in cases)))
    new = {case["case"]: _new_kernels(case["case"], runs) for case in cases}
    names = {run.model(row) for side in runs.values() for run in side for row in run.rows}
    card = f"{', '.join(names)}, torch {runs['base'][0].machine.get('torch')}, driver {runs['base'][0].driver}"
    shown = Shown(exhibit.name, "missed", "", judged=len(compared), card=card)
    if exhibit.is_control:
        bad = [case for case in compared if case["verdict"] in CHANGED and not new[case["case"]]]
        told = "; ".join(map(_size, bad)) or f"{len(compared)} cases, none changed by the same kernels"
        return replace(shown, answer="invented" if bad else "clean", sentence=told, invented=len(bad))
    said = {one["case"]: "\n".join([one["sentence"], *one["remarks"], *new[one["case"]]]) for one in cases}
    given = [one for one in cases if exhibit.verdict in ("", one["verdict"])]
    wanted = [one for one in given if re.search(exhibit.says, said[one["case"]])]
    never = [case for case in cases if case["verdict"] in exhibit.never]
    if never or not wanted:
        return replace(shown, sentence="; ".join(map(_size, never or cases)))
    largest = _size(max(wanted, key=lambda case: abs(case["effects"].get(case["judged_in"], {}).get("change", 0.0))))
    return replace(shown, answer="found", sentence=f"{len(wanted)} of {len(cases)} cases, {largest}")


def _new_kernels(case: str, runs: Mapping[str, Sequence[Run]]) -> set[str]:
    rows = {side: [run.by_case[case] for run in runs[side] if case in run.by_case] for side in ("base", "head")}
    base, head = ({kernel for row in of_side for kernel in row.trace.kernels or ()} for of_side in rows.values())
    return head - base


def _size(case: Mapping[str, Any]) -> str:
    """The verdict of a case, by the last part of its name."""
    said = f"{re.split('/|::', case['case'])[-1]} {case['verdict']}"
    if not case["judged_in"]:
        return f"{said}: {case['sentence'].partition(';')[0]}"
    change = case["effects"][case["judged_in"]]["change"]
    return f"{said}: {case['judged_in']} {100 * math.expm1(change):+.1f} %"


def _seconds(there: Path) -> float:
    """What `ab`, `bisect` and `tune-report` took, also if in several goes."""
    session, steps = there / "ab" / "session.json", there / "bisect" / FINDINGS
    by_ab = read_json(session)["wall_s"] if session.exists() else 0.0
    by_tuner = sum(read_json(path)["seconds"] for path in there.glob(f"{TUNER}-*/{TUNED}"))
    return float(by_ab + by_tuner + sum(step["seconds"] for step in (read_json(steps) if steps.exists() else ())))


def table(exhibits: Sequence[Exhibit], done: Mapping[str, Shown]) -> Iterator[str]:
    """The page, as far as it goes."""
    names = ([one.name for one in exhibits if one.is_control is side] for side in (False, True))
    seen, controls = ([done[name] for name in of_side if name in done] for of_side in names)
    cards = "; ".join(dict.fromkeys(one.card for one in (*seen, *controls) if one.card)) or "nothing was measured"
    yield "# The museum: known changes of FlashInfer's releases\n"
    yield _wrapped(f"Recorded on {time.strftime('%Y-%m-%d')} by `python tests/acceptance/museum.py`: {cards}.")
    yield _wrapped(" ".join(_summary(seen, controls)))
    yield "| what is known | releases | answer | by how much | seconds | what stopped it |\n|---|---|---|---|---|---|"
    for exhibit in exhibits:
        one = done.get(exhibit.name, NOT_YET)
        told = ("", one.sentence) if one.answer in ("stopped", "no case") else (one.sentence, "")
        size, stopped = (text.replace("|", "\\|") for text in told)
        cells = (exhibit.what, ", ".join(exhibit.releases), one.answer, size, f"{one.seconds:.0f}", stopped)
        yield f"| {' | '.join(cells)} |"


def _summary(seen: Sequence[Shown], controls: Sequence[Shown]) -> Iterator[str]:
    """What README says, and of the others why they say nothing."""
    found, missed, stopped, without = (sum(one.answer == answer for one in seen) for answer in get_args(Answer)[:4])
    judged_there, invented = (sum(getattr(one, name) for one in controls) for name in ("judged", "invented"))
    yield f"{found} of {found + missed} known changes of FlashInfer's releases are found."
    yield f"{invented} of {judged_there} verdicts on releases without one are SLOWER or FASTER by the same kernels."
    yield f"{stopped} more were stopped, and {without} have no case."


def _wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    main()
