"""The museum on releases that are made up: found, missed, invented, not importing; and its real data."""

import json
import re
import sys

import museum
import pytest
from packaging.version import Version
from releases import environment, wheel

from pytest_flashinfer_perf.rows import fields

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


def test_the_museums_data_are_whole():
    document = museum.tomllib.loads(museum.DATA.read_text())
    shown, controls = (fields.read_list(museum.Exhibit, document[name], name) for name in ("exhibit", "control"))
    assert all(one.is_control and one.cases for one in controls)
    assert all(bool(one.cases) != bool(one.without_case) and not one.is_control for one in shown)
    assert len({one.name for one in (*shown, *controls)}) == len(shown) + len(controls)
    assert all(Version(one.releases[0]) < Version(one.releases[1]) for one in (*shown, *controls) if one.find)
    named = {re.sub(r".*::|\[.*", "", one.cases[0]) for one in shown if museum.CALLS in (one.cases or ("",))[0]}
    assert named == set(re.findall(r"^def (test_\w+)", museum.DATA.with_name(museum.CALLS).read_text(), re.MULTILINE))
