"""Sixty nights, night by night: what changed is told, and nothing else is."""

import json
import re

import pytest
from made import MACHINE, row, run, saved
from nights import Sixty, commit_of, environment, night, write

from pytest_flashinfer_perf.cli.commands import main
from pytest_flashinfer_perf.extensions.nights import changes, pages
from pytest_flashinfer_perf.extensions.nights.record import Records
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.rows import run_file

FIGURE = {"a": 100.0, "b": 30.0}
BUSY = {"seconds": 1.0, "cores": 2, "waited": 0.9, "taken": 0.9, "stolen": 0.0}


@pytest.mark.parametrize("seed", [12, 22, 63])
def test_of_sixty_nights_what_changed_is_told_and_nothing_else_on_any_night(seed):
    made, records, told = Sixty(seed), Records(), set()
    for document in made.documents():
        records.add(run_file.parse(document, "nights"))
        [page] = pages.of_records(records, Thresholds())
        told |= {one.case.name for one in page.there}
    assert told == {"decode/drifts", "decode/steps"}
    text = changes.text([page])
    size = float(re.search(r"\| decode/steps .*? \| \+(\d\.\d\d) % \|", text)[1])
    assert size == pytest.approx(100 * (2.718281828**made.step - 1), abs=0.4)
    assert "* now runs another kernel: old\\_kernel -&gt; new\\_kernel" in text


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def watched(here, *documents):
    """The exit code after more nights, and what is written of all."""
    write(here / "data", documents, first=len(list((here / "data").iterdir())))
    code = main("watch", ["data", "-o", "site", "--markdown", "changes.md"])
    return code, (here / "changes.md").read_text()


def before():
    for number in range(40):
        yield night(number, {key: us * (1 + ((-1) ** number) * 0.002) for key, us in FIGURE.items()}, environment())


def after(number, factor, *, only="a", card="GPU-0", **software):
    where = environment(card=card, software={"driver": "580", "flashinfer": "0.7.2", **software})
    wobble = 1 + ((-1) ** number) * 0.002
    return night(number, {key: us * wobble * (factor if key in only else 1) for key, us in FIGURE.items()}, where)


def test_a_change_is_told_when_it_is_sure_and_no_more_when_it_is_gone(here):
    assert watched(here, *before())[0] == 0
    seen = [watched(here, after(number, 1.05, flashinfer="0.7.3")) for number in range(40, 44)]
    assert [code for code, _ in seen] == [0, 0, 1, 1]  # two slow nights are no level
    text = seen[-1][1]
    assert text.startswith("# NVIDIA H200: 1 changed, 0 failing\n")
    assert "## SLOWER since 2026-02-10 03:00\n" in text
    assert "* flashinfer 0.7.2 -&gt; 0.7.3" in text
    assert "    pytest '--perf-case=" in text
    assert "    flashinfer-perf bisect --releases 0.7.2 0.7.3 --find slower -- '--perf-case=" in text
    for number in range(44, 51):
        code, text = watched(here, after(number, 1.0, flashinfer="0.7.4"))
    assert (code, "SLOWER" in text) == (0, False)


def test_cases_that_change_in_one_night_are_told_together(here):
    code, text = watched(here, *before(), *(after(number, 0.9, only="ab") for number in range(40, 48)))
    assert (code, text.count("## FASTER since")) == (0, 1)
    assert len(re.findall(r"^\| decode/[ab] \|", text, re.MULTILINE)) == 2


def test_a_change_of_a_commit_is_searched_between_commits(here):
    _, text = watched(here, *before(), *(after(number, 1.05) for number in range(40, 48)))
    good, bad = commit_of(38), commit_of(41)  # a night to either side, since it may be placed that much wrong
    assert f"bisect --repo . --good {good} --bad {bad} --find slower" in text


def test_a_change_is_gone_on_another_card_too(here):
    """What a card is apart from the one before is no change, what changes on it afterwards is."""
    cards = [("GPU-0", 1.05)] * 8 + [("GPU-1", 1.08)] * 12 + [("GPU-1", 1.03)] * 12
    texts = [after(number, factor, only="ab", card=card) for number, (card, factor) in enumerate(cards, 40)]
    _, text = watched(here, *before(), *texts[:20])
    assert text.count("## SLOWER since 2026-02-10") == 1
    assert "## SLOWER" not in watched(here, *texts[20:])[1]


def test_files_of_runs_are_watched_as_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for day in range(20):
        newer = day >= 12
        rows = [
            row("decode/step", us=(110.0 if newer else 100.0) + day % 3 / 10),
            row("decode/calm", us=9 + day % 2 / 99),
        ]
        machine = {**MACHINE, "flashinfer": "0.7.3" if newer else "0.7.2"}
        # They are ordered by their dates, not by their names.
        path = tmp_path / "runs" / "below" / f"{19 - day:04}_nightly.json"
        saved(path, *rows, when=f"2026-11-{day + 1:02}T03:00:00+00:00", machine=machine, commit=f"{day:040}")
    assert main("watch", ["runs", "-o", "site"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "20 runs, 2 cases, 1 changed 2026-11-13 03:00: decode/step +9." in told
    assert "flashinfer 0.7.2 -> 0.7.3" in told
    assert json.loads((tmp_path / "site" / "index.js").read_text().partition(",")[2].rpartition(")")[0])["pages"]


def test_a_card_has_a_night_of_its_own_and_what_failed_is_kept():
    failed = {"case": "decode/b64", "outcome": "failed", "reason": "IndexError: out of range\nmore"}
    rows = [row("a"), row("b", gpu_uuid="GPU-1"), row("wrong", refcheck="wrong"), row("none", us=None)]
    rows += [row("fast", status="invalid"), row("busy", instrument="wall", contention=BUSY)]
    records = Records()
    for _ in range(2):  # a copy of a run counts once
        records.add(run(*rows, unmeasured=[failed]))
    records.add(run(row(us=None)))
    first, second = records.nights.values()
    assert [one.name for one in records.cases.values()] == ["a", "wrong", "b"]
    assert (len(first.cases), len(second.cases), second.failed) == (2, 1, first.failed)
    assert set(first.failed) == {"decode/b64", "wrong", "fast"}
    assert first.failed["decode/b64"].endswith("IndexError: out of range")


def test_a_night_in_which_all_failed_is_of_the_device_that_it_was_meant_for():
    records = Records()
    records.add(run(unmeasured=[{"case": "a", "outcome": "failed", "reason": "x", "device_name": "AMD EPYC"}]))
    assert [one.environment.gpu for one in records.nights.values()] == ["AMD EPYC"]
