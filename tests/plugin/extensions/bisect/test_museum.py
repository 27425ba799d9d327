"""The museum on releases that are made up: found, missed, invented, not importing, interrupted; and its real data."""

import json
import os
import re
import sys
import textwrap
from datetime import datetime, timezone
from pathlib import Path

import museum
import planted_tactics
import pytest
from packaging.version import Version
from releases import environment, wheel

from pytest_flashinfer_perf.launch.processes import Environment
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.run_file import Run

LEVELS = {
    "1.0": (100, ""),
    "1.1": (120, ""),
    "1.2": (120, ""),
    "1.3": (150, "KERNEL = 'kernel_120'"),
    "1.4": (1, "1/0"),
}
SLOWER = 'cases = ["tests"], verdict = "SLOWER", find = "slower"'
FASTER = 'cases = ["tests"], verdict = "FASTER", find = "faster"'
EXHIBITS = f"""
exhibit = [
  {{ name = "grown", what = "20 %", releases = ["1.0", "1.1"], says = "kernel_120", never = ["FASTER"], {SLOWER} }},
  {{ name = "elsewhere", what = "20 %, in the release before", releases = ["1.0", "1.2"], {SLOWER} }},
  {{ name = "imagined", what = "nothing", releases = ["1.1", "1.2"], {FASTER} }},
  {{ name = "ruined", what = "a release that does not import", releases = ["1.3", "1.4"], {FASTER} }},
  {{ name = "lost", what = "nobody has a case", releases = ["1.0", "1.1"], without_case = "no case asks for it" }},
]
control = [
  {{ name = "quiet", what = "the same", releases = ["1.1", "1.2"], cases = ["tests"] }},
  {{ name = "loud", what = "slower by the same kernel", releases = ["1.2", "1.3"], cases = ["tests"] }},
]
"""


@pytest.fixture
def visit(tmp_path, monkeypatch):
    """Goes through the museum; returns each answer by its name, and the page."""
    python = environment(tmp_path, monkeypatch)
    for version, (us, first) in LEVELS.items():
        wheel(tmp_path / "wheels", version, us, first=first)
    (tmp_path / "museum.toml").write_text(EXHIBITS)

    def visit(*only):
        words = ["museum.py", "out", "--exhibits=museum.toml", "--wheels=wheels", f"--python={python}"]
        chosen = ["--only", *only] if only else []
        monkeypatch.setattr(sys, "argv", [*words, *chosen, "--", "--perf-device=cpu"])
        museum.main()
        state = json.loads((tmp_path / "out" / "state.json").read_text())
        return {one["name"]: one for one in state}, (tmp_path / "out" / "museum.md").read_text()

    return visit


@pytest.mark.more
def test_each_exhibit_has_an_answer_and_a_control_that_is_invented_is_named(visit):
    seen, page = visit()
    answers = [one["answer"] for one in seen.values()]
    assert answers == ["found", "missed", "missed", "stopped", "no case", "clean", "invented"]
    assert seen["grown"]["sentence"].startswith("1 of 1 cases, a SLOWER: time +20.0 %; bisect names 1.1: ")
    assert "bisect names 1.1" in seen["elsewhere"]["sentence"]
    assert re.search(r"bisect: own/a: 120.\d+ us -> 120.\d+ us: time [+-]0.00 %$", seen["imagined"]["sentence"])
    assert seen["ruined"]["sentence"] == "1.4: 1.4 does not import here: ZeroDivisionError: division by zero"
    assert seen["grown"]["seconds"] > 0
    summary = " ".join(page.split("\n\n")[2].split())
    assert summary == (
        "1 of 3 known changes of FlashInfer's releases are found. 1 of 2 verdicts on releases "
        "without one are SLOWER or FASTER by the same kernels. 1 more were stopped, and 1 have no case."
    )
    assert "| nobody has a case | 1.0, 1.1 | no case |  | 0 | no case asks for it |\n" in page
    assert re.search(r"\| slower by the same kernel \| 1.2, 1.3 \| invented \| a SLOWER: .* \| \d+ \|  \|\n", page)


@pytest.mark.more
def test_what_was_interrupted_goes_on_and_what_is_done_is_not_measured_again(visit, tmp_path, monkeypatch):
    started, run = [], museum.processes.started

    def interrupted(where, words=(), log=None):
        code = run(where, words, log)
        if where is not museum.OURS:
            return code
        started.append(words[0])
        if len(started) == 2:
            (tmp_path / "out" / "grown" / "bisect" / "result.json").unlink()
            raise KeyboardInterrupt
        return code

    monkeypatch.setattr(museum.processes, "started", interrupted)
    with pytest.raises(KeyboardInterrupt):
        visit("grown", "imagined")
    (tmp_path / "out" / "imagined" / "ab").mkdir(parents=True)
    (tmp_path / "out" / "imagined" / "ab" / "pair-01-base.json").write_text("torn")
    before = (tmp_path / "out" / "grown" / "ab" / "session.json").read_text()
    seen, _ = visit("grown", "imagined")
    answers = {"grown": "found", "imagined": "missed", "lost": "no case"}
    assert {name: one["answer"] for name, one in seen.items()} == answers
    assert (tmp_path / "out" / "grown" / "ab" / "session.json").read_text() == before
    assert started == ["ab", "bisect", "bisect", "ab", "bisect"]
    visit("grown", "imagined")
    assert len(started) == 5


WRONG = {"verdict": "MISSING", "sentence": "Failed: wrong answer: output 0", "remarks": [], "effects": {}}
CUTE = {"verdict": "SAME", "sentence": "", "remarks": ["now the CuTe DSL implementation"]}
NORM = {**CUTE, "judged_in": "time", "effects": {"time": {"change": 0.01}}}


@pytest.mark.parametrize(
    ("verdict", "says", "case", "answer", "sentence"),
    [
        ("MISSING", "illegal|wrong answer", WRONG, "found", "1 of 1 cases, a MISSING: Failed: wrong answer: output 0"),
        ("MISSING", "illegal", WRONG, "missed", "a MISSING: Failed: wrong answer: output 0"),
        ("", "the CuTe DSL", NORM, "found", "1 of 1 cases, a SAME: time +1.0 %"),
        ("FASTER", "the CuTe DSL", NORM, "missed", "a SAME: time +1.0 %"),
    ],
)
def test_an_exhibit_may_be_a_wrong_answer_or_another_implementation(verdict, says, case, answer, sentence):
    """Of a case without a row on one side, or whose time did not change."""
    exhibit = museum.Exhibit("e", "what", ("1.0", "1.1"), ("tests",), verdict=verdict, says=says)
    runs = {side: [Run(source=side, when=datetime.now(timezone.utc))] for side in ("base", "head")}
    seen = museum.judged(exhibit, [{"case": "a", "judged_in": None, **case}], runs)
    assert not exhibit.is_control
    assert (seen.answer, seen.sentence) == (answer, sentence)


@pytest.mark.more
@pytest.mark.parametrize(
    ("later", "answer", "sentence"),
    [
        ({"BY_TYPE": "1"}, "found", r"NOTE bmm_fp8/m3-n16-k32-auto: no longer as in --base, a_product: .*"),
        ({}, "missed", r"tune-report: none of \d+ findings says it"),
    ],
)
def test_an_exhibit_may_be_what_the_tuner_reports(later, answer, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    support = Path(planted_tactics.__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(support), str(support / "no_cute_dsl"))))
    Path("test_planted.py").write_text(textwrap.dedent(planted_tactics.FILE))
    pytest_there = (sys.executable, "-m", "pytest")
    there = {"1.0": Environment("1.0", pytest_there), "1.1": Environment("1.1", pytest_there, variables=later)}
    visited = museum.Museum(tmp_path, "", None, ["--perf-device=cpu", "--perf-backends=auto"], there)
    says = "no longer as in --base, .* does not serve 3"
    exhibit = museum.Exhibit("kept", "by size", ("1.0", "1.1"), ("test_planted.py", "-k", "m3-n16"), tuner_says=says)
    seen = visited.shown(exhibit)
    assert (seen.answer, seen.judged, exhibit.is_control) == (answer, 1, False)
    assert re.fullmatch(sentence, seen.sentence)
    assert seen.seconds > 0
    assert visited.shown(exhibit) == seen  # of the reports that are there


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (EXHIBITS.replace("verdict", "verdikt"), "nothing is named verdikt"),
        (EXHIBITS.replace("control =", "controls ="), "nothing is named controls"),
        (EXHIBITS.replace('"SLOWER"', '"SLOWR"'), "grown or elsewhere"),
        (EXHIBITS.replace('"quiet"', '"grown"'), "none that can be: grown"),
        ("", "no exhibit"),
        ("exhibit = [", "museum.toml: "),
    ],
)
def test_data_that_say_something_else_than_is_meant_are_refused(text, said, tmp_path, monkeypatch, capsys):
    path = tmp_path / "museum.toml"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["museum.py", "out", f"--exhibits={path}"])
    with pytest.raises(SystemExit, match="2"):
        museum.main()
    assert said in capsys.readouterr().err


def test_the_museums_data_are_whole():
    document = museum.tomllib.loads(museum.DATA.read_text())
    shown, controls = (fields.read_list(museum.Exhibit, document[name], name) for name in ("exhibit", "control"))
    assert all(one.is_control and one.cases for one in controls)
    assert all(bool(one.cases) != bool(one.without_case) and not one.is_control for one in shown)
    assert len({one.name for one in (*shown, *controls)}) == len(shown) + len(controls)
    assert all(Version(one.releases[0]) < Version(one.releases[1]) for one in (*shown, *controls) if one.find)
    named = {re.sub(r".*::|\[.*", "", one.cases[0]) for one in shown if museum.CALLS in (one.cases or ("",))[0]}
    assert named == set(re.findall(r"^def (test_\w+)", museum.DATA.with_name(museum.CALLS).read_text(), re.MULTILINE))
