"""Sixty nights, night by night: what changed has one alarm, what else happened is named once, and nothing else is."""

import json
import re

import pytest
from nights import Sixty, case, commit_of, environment, line, night

from pytest_flashinfer_perf.cli.commands import main

FIGURE = {"a": 100.0, "b": 30.0}


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def watched(here, text):
    """One more night, and all that is said of it."""
    with (here / "data" / "2026-01.jsonl").open("a") as there:
        there.write(text)
    return main("watch", ["data", "-o", "site", "--alarms", "alarms"])


def alarms(here):
    return {one["id"]: one for one in json.loads((here / "alarms" / "alarms.json").read_text())}


@pytest.mark.parametrize("seed", [12, 22, 63])  # of those in which a drift looks like steps for some nights
def test_each_of_sixty_nights_changes_is_named_once_and_nothing_else_ever(seed, here):
    made = Sixty(seed)
    states = []
    for text in made.lines():
        if text is not None:
            watched(here, text)
            states += [one["state"] for one in alarms(here).values()]
    assert sorted(key for one in alarms(here).values() for key, _ in one["cases"]) == ["drifts", "steps"]
    assert set(states) == {"open"}
    readme = (here / "alarms" / "README.md").read_text()
    listed = sorted(re.findall(r"^\* [0-9]{4}-\d\d-\d\d [0-9:]{5}: (.*)", readme, re.MULTILINE))
    assert listed == [
        "1 night without a run before this one",
        "card GPU-1 instead of GPU-0, levels before and after are not compared",
        "decode/named is now called decode/renamed",
        "driver 580 -&gt; 590",
    ]
    texts = [(here / "alarms" / f"{name}.md").read_text() for name in alarms(here)]
    drift, step = sorted(texts, key=lambda text: "decode/steps" in text)
    assert re.search(r"SLOWER: decode/drifts \+\d+\.\d\d %", drift)
    assert "creeping until" in drift
    size = float(re.search(r"# SLOWER: decode/steps \+(\d\.\d\d) %", step)[1])
    assert size == pytest.approx(100 * (2.718281828**made.step - 1), abs=0.4)
    assert "now runs another kernel: old\\_kernel -&gt; new\\_kernel" in step
    assert re.search(
        r"## Kernels before, of decode/steps\n\n    old_kernel\n\n## Kernels since, .*\n\n    new_kernel", step
    )


def before(rng=0.0):
    e = environment()
    yield line("environment", e[0], **e[1]) + case("a") + case("b")
    for number in range(40):
        yield night(number, {key: us * (1 + ((-1) ** number) * 0.002 + rng) for key, us in FIGURE.items()}, e[0])


def after(number, factor, *, only="a", **software):
    where = environment(software={"driver": "580", "flashinfer": "0.7.2", **software})
    wobble = 1 + ((-1) ** number) * 0.002
    figures = {key: us * wobble * (factor if key in only else 1) for key, us in FIGURE.items()}
    return line("environment", where[0], **where[1]) + night(number, figures, where[0])


def test_an_alarm_is_opened_when_it_is_sure_updated_and_closed_when_the_change_is_gone(here, capsys):
    assert watched(here, "".join(before())) == 0
    codes = [watched(here, after(number, 1.05, flashinfer="0.7.3")) for number in range(40, 44)]
    assert codes == [0, 0, 1, 1]  # two slow nights are no level
    [name] = alarms(here)
    assert name == "2026-02-10-slower-decode-a"
    path = here / "alarms" / f"{name}.md"
    first = path.read_text()
    assert "# SLOWER: decode/a +5." in first
    assert "Open: since 2026-02-10 03:00; updated with the run of 2026-02-13 03:00." in first
    assert "flashinfer 0.7.2 -&gt; 0.7.3" in first
    assert watched(here, after(44, 1.05, flashinfer="0.7.3")) == 1
    assert "updated with the run of 2026-02-14 03:00." in path.read_text()
    assert watched(here, after(44, 1.05, flashinfer="0.7.3")) == 1  # the same run again
    for number in range(45, 52):
        code = watched(here, after(number, 1.0, flashinfer="0.7.4"))
    assert code == 0
    assert {one: said["state"] for one, said in alarms(here).items() if "slower" in one} == {name: "closed"}
    assert "Closed: with the run of" in path.read_text()
    assert path.read_text().count("It was open: since 2026-02-10 03:00") == 1
    assert f"* closed: [{name}]({name}.md)" in (here / "alarms" / "README.md").read_text()
    assert "written to site/index.html" in capsys.readouterr().out


def test_cases_that_change_in_one_night_share_an_alarm(here):
    watched(here, "".join(before()))
    for number in range(40, 48):
        watched(here, after(number, 0.9, only="ab"))
    [name] = alarms(here)
    text = (here / "alarms" / f"{name}.md").read_text()
    assert re.search(r"^# FASTER: decode/[ab] -1\d\.\d\d % and 1 other case$", text, re.MULTILINE)
    assert len(re.findall(r"^\| decode/[ab] \|", text, re.MULTILINE)) == 2


SUSPECT = {"case": "decode/a", "suspects": ["0.7.3"], "verified": {"answer": 1, "sentence": "time +5.1 %"}}


def test_an_alarm_has_the_search_for_its_cause_and_what_that_found(here):
    watched(here, "".join(before()))
    for number in range(40, 48):
        watched(here, after(number, 1.05, flashinfer="0.7.3"))
    [name] = alarms(here)
    path, folder = here / "alarms" / f"{name}.md", here / "alarms" / name
    command = f"flashinfer-perf bisect --releases 0.7.2 0.7.3 --find slower --output alarms/{name} -- '--perf-case="
    assert command in path.read_text()
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps([SUSPECT, {"case": "decode/b"}]))
    watched(here, after(49, 1.05, flashinfer="0.7.3"))
    assert "* decode/a: since 0.7.3, time +5.1 %\n* decode/b: nothing is suspected" in path.read_text()


def test_a_change_of_a_commit_is_searched_between_commits(here):
    watched(here, "".join(before()))
    for number in range(40, 48):
        watched(here, after(number, 1.05))
    [name] = alarms(here)
    good, bad = commit_of(38), commit_of(41)  # a night to either side, since it may be placed that much wrong
    command = f"bisect --repo . --good {good} --bad {bad} --find slower"
    assert command in (here / "alarms" / f"{name}.md").read_text()


def test_a_change_is_gone_on_another_card_too(here):
    """What a card is apart from the one before is no change, what changes on it afterwards is."""
    watched(here, "".join(before()))
    cards = [("GPU-0", 1.05)] * 8 + [("GPU-1", 1.08)] * 12 + [("GPU-1", 1.03)] * 12
    for number, (card, factor) in enumerate(cards, 40):
        where = environment(card=card)
        figures = {key: us * factor * (1 + ((-1) ** number) * 0.002) for key, us in FIGURE.items()}
        watched(here, line("environment", where[0], **where[1]) + night(number, figures, where[0]))
        if number == 59:
            [first] = alarms(here).values()
            assert first["state"] == "open"
    assert [one["state"] for one in alarms(here).values() if one["slower"]] == ["closed"]


@pytest.mark.parametrize("name", ["2026-02-10-slower-decode-a.md", "README.md", "alarms.json"])
def test_no_link_in_the_folder_of_alarms_is_followed(name, here, capsys):
    """Others may push to it."""
    (here / "alarms").mkdir()
    (here / "victim").write_text("[]")
    (here / "alarms" / name).symlink_to("../victim")
    texts = [*before(), *(after(number, 1.05) for number in range(40, 44))]
    assert watched(here, "".join(texts)) == 2
    assert f"alarms/{name} is a link, which is not followed" in capsys.readouterr().err
    assert (here / "victim").read_text() == "[]"


OUTSIDE = '[{"id": "../x", "gpu": "g", "since": "r", "slower": true, "state": "open", "cases": []}]'


@pytest.mark.parametrize("text", ["{", "[{}]", '[{"id": "x", "gpu": 5}]', OUTSIDE])
def test_alarms_of_earlier_nights_that_cannot_be_read_are_an_error(text, here, capsys):
    (here / "alarms").mkdir()
    (here / "alarms" / "alarms.json").write_text(text)
    assert watched(here, "".join(before())) == 2
    assert "alarms/alarms.json: not the alarms of earlier nights" in capsys.readouterr().err
