"""The site of many runs: what its files say, how large they are, and what a browser shows."""

import json
import re

import numpy as np
import pytest
from browsing import BROWSER, all_of, browser, look, one
from documents import DOCS, EXAMPLES, blocks
from nights import Sixty, commit_of, environment, night, write
from reports import HOSTILE
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from pytest_flashinfer_perf.cli.commands import main
from pytest_flashinfer_perf.extensions.nights.site import AT_ONCE


def data(site, name):
    """What a file of data hands to the page."""
    [(said, text)] = re.findall(r"\Awatch\((\"[^\"]+\"),(.*)\);\n\Z", (site / f"{name}.js").read_text(), re.DOTALL)
    assert json.loads(said) == name
    return json.loads(text)


def made(folder, *documents):
    return main("watch", [str(write(folder / "data", documents)), "-o", str(folder / "site")]), folder / "site"


def test_a_case_goes_on_on_another_card(tmp_path, capsys):
    sixty = Sixty(12)
    code, site = made(tmp_path, *sixty.documents())
    assert code == 1
    told = capsys.readouterr().out
    assert re.search(r"decode/steps \+3\.\d\d %\n    now runs another kernel: old_kernel -> new_kernel", told)
    page = data(site, "nvidia-h200")
    assert [len(page["nights"]), page["count"], page["slower"], page["faster"]] == [59, 6, 2, 0]
    assert {change["name"]: change["state"] for change in page["changes"]} == {
        "decode/steps": "SLOWER",
        "decode/drifts": "SLOWER",
    }
    calm = next(one for one in data(site, "nvidia-h200/trends-0").values() if one["name"] == "decode/0")
    assert None not in calm["values"]
    shown = [calm["middle"] * (1 + value * 1e-4) for value in calm["values"]]
    assert min(shown) > 0.95 * sixty.levels["0"]
    first, second = calm["levels"]  # a level for each card, around each of which noise is known
    assert [first[:2], second[:2]] == [[0, 52], [53, 58]]
    assert second[2] / first[2] == pytest.approx(1.02, abs=0.006)
    assert 1.004 < first[3] < 1.016
    assert data(site, "index")["pages"][0]["page"] == "nvidia-h200"


def test_health_is_that_of_the_newest_run(tmp_path, capsys):
    e = environment()
    texts = [night(n, {"a": 100.0 * (1 + n % 3 / 20), "b": 50.0 + n % 2 / 10}, e) for n in range(20)]
    texts += [night(20, {"a": 100.0, "new": 9.0}, e, failed={"decode/c": "it is wrong"})]
    code, site = made(tmp_path, *texts)
    assert code == 1
    assert "decode/c, failed: it is wrong" in capsys.readouterr().out
    [health] = data(site, "index")["pages"]
    assert (health["measured"], health["gone"]) == (2, ["decode/b"])
    assert health["failed"] == {"decode/c": "failed: it is wrong"}
    short, noisy = health["unsure"]
    assert short.startswith("1 case with fewer than 6 runs on one card")
    assert noisy.startswith("1 case with a threshold below 3 sd")


def test_what_failed_on_one_host_is_not_hidden_by_the_run_of_another(tmp_path, capsys):
    e, other = environment(), environment(card="GPU-other")
    texts = [night(n, {"a": 100.0 + n % 3 / 10}, e) for n in range(8)]
    texts += [night(8, {"a": 100.0}, e, failed={"decode/b": "it crashed"}), night(9, {"a": 101.0}, other)]
    assert made(tmp_path / "one", *texts)[0] == 1
    assert "decode/b, failed: it crashed" in capsys.readouterr().out
    assert made(tmp_path / "two", *texts, night(10, {"a": 100.0, "b": 5.0}, e))[0] == 0


def test_cases_that_vanish_and_too_few_runs_are_not_judged(tmp_path, capsys):
    e = environment()
    texts = [night(n, {"a": 100.0 + n % 3 / 10, "b": 50.0 + n % 2 / 10}, e) for n in range(8)]
    assert made(tmp_path / "few", *texts[:5])[0] == 2
    assert "no case has 6 runs on one card: too few to tell a change" in capsys.readouterr().out
    assert made(tmp_path / "enough", *texts)[0] == 0
    assert made(tmp_path / "suites", *texts, night(8, {"c": 9.0}, e))[0] == 0  # it has no case in common
    capsys.readouterr()
    assert made(tmp_path / "gone", *texts, night(8, {"a": 100.0}, e))[0] == 2
    assert "not in the newest run: decode/b" in capsys.readouterr().out


def test_each_model_has_a_page_whatever_it_is_called(tmp_path):
    names = ["NVIDIA H200", "nvidia/h200", "nvidia-h200-1", "../index", "site", "<b>"]
    texts = []
    for nth, gpu in enumerate(names):
        where = environment(gpu=gpu)
        texts += [night(nth, {"a": 5.0}, where)]
    code, site = made(tmp_path, *texts)
    assert code == 2
    pages = {page["gpu"]: page["page"] for page in data(site, "index")["pages"]}
    assert set(pages) == set(names)
    assert len(set(pages.values())) == len(names)
    assert "function" in (site / "site.js").read_text()
    assert all(data(site, page)["gpu"] == gpu for gpu, page in pages.items())
    assert all((site / f"{page}.html").is_file() for page in pages.values())
    assert "<title>&lt;b&gt;</title>" in (site / f"{pages['<b>']}.html").read_text()
    assert {path.parent for path in tmp_path.rglob("*.html")} == {site}


def test_cycles_are_what_is_judged_where_all_nights_have_them(tmp_path):
    e = environment()
    texts = []
    for n in range(20):
        how = {"sm_ghz": 1.9 - n / 30, "cycles": 190_000 + n % 3, "bound": "compute"}
        texts.append(night(n, {"a": 100.0 + 2 * n}, e, **how))
    code, site = made(tmp_path, *texts)
    assert (code, data(site, "nvidia-h200/trends-0").popitem()[1]["unit"]) == (0, "cycles")


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_nothing_to_watch_is_an_error(where, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main("watch", [where, "-o", "site"]) == 2
    assert "flashinfer-perf watch: " in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_the_document_shows_what_its_first_command_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    shown, *_ = blocks(DOCS / "watch.md", "console")
    command, _, told = shown.partition("\n")
    assert main("watch", command.split()[3:]) == 1
    assert capsys.readouterr().out == told


def test_trends_of_two_hundred_cases_share_a_file(tmp_path):
    """A list names the file of each."""
    e = environment()
    keys = [f"k{nth:03}" for nth in range(AT_ONCE * 2 + 1)]
    nights = (night(n, dict.fromkeys(keys, 5.0 + n % 2 / 100), e) for n in range(7))
    code, site = made(tmp_path, *nights)
    assert code == 0
    parts = [data(site, f"nvidia-h200/trends-{nth}") for nth in range(3)]
    assert [len(part) for part in parts] == [AT_ONCE, AT_ONCE, 1]
    rows = data(site, "nvidia-h200/list-0")
    assert all(row[0] in parts[row[-1]] for row in rows)
    assert len(rows) == data(site, "nvidia-h200")["count"] == len(keys)


CASES, NIGHTS, CHANGED = 1000, 60, 42


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A thousand cases, each of sixty nights, which lack one in fifty; one case has a step, one a strange name."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(5)
    names = [f"{nth % 30}/llama-3.1-70b-tp8-b{nth}-s8192-h64-kv8-d128-fa3" for nth in range(CASES)]
    names[7] = HOSTILE
    level = rng.uniform(3, 3000, CASES)
    routines = {name: {"routine": f"BatchRoutine{nth % 30}"} for nth, name in enumerate(names)}
    nights = []
    for day in range(NIGHTS):
        us = np.round(level * np.exp(rng.normal(0, 0.004, CASES)), 3)
        us[CHANGED] *= 1.08 if day > NIGHTS - 15 else 1.0
        seen = np.flatnonzero(rng.random(CASES) > 0.02)
        figures = {names[nth]: float(us[nth]) for nth in seen}
        nights.append(night(day, figures, environment(), kernels=["kernel"], of_case=routines))
    code, site = made(folder, *nights)
    assert code == 1
    return site


@pytest.mark.more
def test_a_thousand_cases_of_sixty_nights_are_files_below_a_megabyte(many):
    sizes = {path.name: path.stat().st_size for path in many.rglob("*") if path.is_file()}
    assert max(sizes.values()) < 1e6
    page = data(many, "nvidia-h200")
    [change] = page["changes"]
    assert f"-b{CHANGED}-" in change["name"]
    assert page["count"] == CASES


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@BROWSER
@pytest.mark.more
def test_a_browser_opens_a_site_from_files_and_finds_a_case(many, chromium):
    chromium.get((many / "index.html").as_uri())
    wait = WebDriverWait(chromium, 20)
    link = wait.until(lambda d: all_of(d, "#start a"))[0]
    link.click()
    wait.until(lambda d: all_of(d, "main[data-drawn]"))
    assert one(chromium, "#shown").text == f"100 of {CASES} cases"
    [changed] = all_of(chromium, "#changes tbody tr")
    assert "+8." in changed.text
    loaded = {script.get_attribute("src").rpartition("/")[2] for script in all_of(chromium, "script")}
    assert loaded == {"site.js", "nvidia-h200.js", "list-0.js"}
    changed.find_element(By.CSS_SELECTOR, "a").click()
    wait.until(lambda d: all_of(d, "#case svg"))
    assert len(all_of(chromium, "#case circle.point")) > 50
    assert len(all_of(chromium, "#case .band")) == 2
    assert len(all_of(chromium, "#case line.change")) == 1
    commits = [text.text for text in all_of(chromium, "#case text.commit")]
    assert commits[0] == commit_of(0)[:8]
    assert len(commits) == 8
    Select(one(chromium, "#routine")).select_by_visible_text("BatchRoutine3")
    wait.until(lambda _: one(chromium, "#shown").text == "34 of 34 cases")
    one(chromium, "#text").send_keys("b993-")
    wait.until(lambda _: one(chromium, "#shown").text == "1 of 1 cases")
    one(chromium, "#cases a").click()
    wait.until(lambda _: "b993-" in one(chromium, "#case h2").text)
    assert all_of(chromium, "#case line.change") == []
    assert chromium.get_log("browser") == []


@BROWSER
@pytest.mark.more
def test_a_browser_shows_names_like_code_as_text_at_any_width(many, chromium):
    wait = WebDriverWait(chromium, 20)
    [strange] = [row[0] for row in data(many, "nvidia-h200/list-0") if HOSTILE in row[1]]
    for width in (1400, 400):
        look(chromium, width)
        chromium.get("about:blank")
        chromium.get(f"{(many / 'nvidia-h200.html').as_uri()}#case={strange}")
        wait.until(lambda d: all_of(d, "main[data-drawn]") and all_of(d, "#case svg"))
        assert one(chromium, "#case h2").get_attribute("textContent") == f"decode/{HOSTILE}"
        assert all_of(chromium, "#case h2 *") == []
        wide = chromium.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
        left = "const f = document.querySelector('#case figure'); return f.scrollWidth - f.clientWidth - f.scrollLeft"
        assert chromium.execute_script(left) <= 1  # the newest nights are in sight
    assert chromium.get_log("browser") == []
