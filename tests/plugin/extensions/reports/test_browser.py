"""The page as a browser shows it, and as hands, eyes and screen readers use it."""

import pytest
from browsing import BROWSER, all_of, browser, look, one
from reports import HOSTILE, benchmark, document, unmeasured, write
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from pytest_flashinfer_perf.extensions.reports import page, story

pytestmark = [BROWSER, pytest.mark.more]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Two runs: three backends over batch and sequence, two of them once as fast, a failure, skips, names like code."""
    at = [(batch, s_kv) for batch in (1, 16, 64) for s_kv in (1024, 8192)]
    times = {"fa2": 1.0, "cudnn": 0.8, "fa3": 3.0}
    left = [unmeasured(), unmeasured("failed", HOSTILE, "fa3", case=HOSTILE)]
    made = []
    for slower, day in ((1.0, 20), (1.1, 21)):
        alike = {(64, 8192, "cudnn"): 1.001}
        rows = [
            benchmark(b, n, s, us=slower * alike.get((n, s, b), t) * n * s / 1024)
            for n, s in at
            for b, t in times.items()
        ]
        rows.append(benchmark("fa2", us=30.0, case_tag=HOSTILE, shape=HOSTILE, case="tagged", status="noisy"))
        made.append(document(*rows, left=left, when=f"2026-11-{day}T10:00:00+00:00"))
    folder = tmp_path_factory.mktemp("report")
    paths = [write(folder / f"{name}.json", said) for name, said in zip(("one", "two"), made, strict=True)]
    page.write(folder / "report.html", story.read(paths))
    return (folder / "report.html").as_uri()


@pytest.fixture
def shown(chromium, url):
    """The page, just opened, its plots drawn; afterwards its console must be empty."""
    look(chromium)
    chromium.get(url)
    drawn(chromium, 1)
    yield chromium
    assert chromium.get_log("browser") == []


def drawn(driver, count, within="main"):
    wait = WebDriverWait(driver, 20)
    wait.until(lambda d: len(d.find_elements(By.CSS_SELECTOR, f"{within} .chart[data-drawn] svg")) == count)


def rows(driver):
    return [row for row in all_of(driver, "#table tbody tr") if row.is_displayed()]


def column(driver, number):
    return [row.find_elements(By.CSS_SELECTOR, "th, td")[number].text for row in rows(driver)]


def test_it_opens_without_an_error_and_loads_nothing(shown):
    assert one(shown, "h1").text == "NVIDIA H200"
    fastest, rest = all_of(shown, ".answer")
    assert fastest.text.endswith("cudnn is the fastest in all 6 shapes, fa2 ties with it in 1 of 6 shapes.")
    assert "19 cases of 1 routine measured on NVIDIA H200." in rest.text
    assert shown.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_names_are_text_and_no_code_of_theirs_ran(shown):
    assert HOSTILE in one(shown, ".tag").text
    assert HOSTILE in one(shown, ".troubles pre").text
    assert all_of(shown, "img") == []


def test_headings_sort_up_then_down_with_what_has_no_number_last(shown):
    Select(one(shown, "[name=status]")).select_by_visible_text("all")
    heading = one(shown, "#table thead .c3 button")
    heading.click()
    times = all_of(shown, "#table tbody .c3")
    up = [cell.get_attribute("data-value") for cell in times]
    assert up[-2:] == ["", ""]
    assert [float(v) for v in up[:-2]] == sorted(float(v) for v in up[:-2])
    assert one(shown, "#table thead .c3").get_attribute("aria-sort") == "ascending"
    heading.click()
    down = [cell.get_attribute("data-value") for cell in all_of(shown, "#table tbody .c3")]
    assert down == [*reversed(up[:-2]), "", ""]
    assert one(shown, "#table thead .c3").get_attribute("aria-sort") == "descending"


def test_filters_narrow_the_table_and_say_how_far(shown):
    assert one(shown, "#shown").text == "20 of 21 cases"
    Select(one(shown, "[name=backend]")).select_by_visible_text("cudnn")
    assert column(shown, 1) == ["cudnn"] * 6
    one(shown, "[name=words]").send_keys("B16 s8192")
    assert one(shown, "#shown").text == "1 of 21 cases"
    assert "llama-b16-s8192" in column(shown, 0)[0]
    one(shown, "[name=words]").clear()
    one(shown, "[name=words]").send_keys(Keys.SPACE)
    Select(one(shown, "[name=backend]")).select_by_visible_text("all")
    Select(one(shown, "[name=status]")).select_by_visible_text("skipped")
    assert len(rows(shown)) == 1
    assert "it needs compute capability 10.0" in rows(shown)[0].text


POINT = '[data-chart="roofline"] path[aria-roledescription="point"]'


def test_a_point_says_what_it_is_and_opens_its_case(shown):
    points = all_of(shown, POINT)
    assert len(points) == 19
    ActionChains(shown).move_to_element(points[0]).perform()
    WebDriverWait(shown, 5).until(lambda d: one(d, "#vg-tooltip-element").is_displayed())
    said = one(shown, "#vg-tooltip-element").text
    assert "llama-b1-s1024-fa2" in said
    assert "pytest --perf-case='fa2'" in said
    points[0].click()
    drawn(shown, 4, "dialog")
    assert one(shown, "dialog h2").text.endswith("llama-b1-s1024-fa2")


def test_a_case_opens_and_closes_by_keyboard_with_samples_and_clocks(shown):
    button = one(shown, "#table .open")
    shown.execute_script("arguments[0].focus()", button)
    ActionChains(shown).send_keys(Keys.ENTER).perform()
    drawn(shown, 4, "dialog")
    titles = [heading.text for heading in all_of(shown, "#details-charts h3")]
    assert titles == [
        "Times of the calls",
        "In the order in which they were made",
        "SM cycles of back-to-back calls",
        "SM clock during those",
    ]
    assert "decode_kernel<fa2>" in one(shown, "#details-kernels").text
    assert "compute_capability" not in one(shown, "#details-facts").text
    assert "instrument" in one(shown, "#details-facts").text
    ActionChains(shown).send_keys(Keys.ESCAPE).perform()
    assert not one(shown, "dialog").is_displayed()
    assert shown.switch_to.active_element == button


def test_speed_ups_are_against_the_backend_that_is_chosen(shown):
    first = all_of(shown, ".compare tbody tr")[0]
    factors = lambda: [cell.text for cell in first.find_elements(By.CSS_SELECTOR, ".factor")]  # noqa: E731
    assert factors() == ["0.80×", "1.00×", "0.27×"]  # noqa: RUF001
    Select(one(shown, ".against")).select_by_visible_text("fa2")
    assert factors() == ["1.00×", "1.25×", "0.33×"]  # noqa: RUF001


MORE = "return [...document.querySelectorAll('.compare')].map(t => t.parentElement.dataset.more)"


def test_tables_that_go_on_beyond_the_edge_say_so_until_its_end(shown):
    assert shown.execute_script(MORE) == [""]
    look(shown, 300)
    WebDriverWait(shown, 5).until(lambda d: d.execute_script(MORE) == ["right"])
    shown.execute_script("document.querySelector('.compare').parentElement.scrollLeft = 9999")
    WebDriverWait(shown, 5).until(lambda d: d.execute_script(MORE) == [""])


BACKGROUND = "return getComputedStyle(document.body).backgroundColor"
AXIS = "return getComputedStyle(document.querySelector('.role-axis-label text')).fill"


def test_the_theme_is_the_systems_until_it_is_chosen(shown):
    light = (shown.execute_script(BACKGROUND), shown.execute_script(AXIS))
    look(shown, theme="dark")
    WebDriverWait(shown, 10).until(lambda d: d.execute_script(AXIS) != light[1])
    assert shown.execute_script(BACKGROUND) != light[0]
    button = one(shown, "#theme")
    assert button.accessible_name == "Switch to the light theme"
    button.click()
    WebDriverWait(shown, 10).until(lambda d: d.execute_script(AXIS) == light[1])
    assert shown.execute_script(BACKGROUND) == light[0]


# Of each text its contrast with what is behind it, by WCAG's formula; tinted cells are left out, they are see-through.
CONTRASTS = """
const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const parts = c => c.match(/[\\d.]+/g).map(Number);
const luminance = c => { const [r, g, b] = parts(c).map(channel); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { for (; e; e = e.parentElement) {
  const c = getComputedStyle(e).backgroundColor;
  if (c.startsWith("rgb(") ) return c; } return "rgb(255, 255, 255)"; };
return [...document.querySelectorAll("h1, p, dt, dd, a, small, .status, .tag, th, td, label, button, .factor, summary")]
  .filter(e => e.checkVisibility() && !e.closest(".compare td") && e.textContent.trim())
  .map(e => { const [a, b] = [getComputedStyle(e).color, behind(e)].map(luminance).sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), e.tagName + "." + e.className + ": " + e.textContent.trim().slice(0, 40)]; })
  .filter(([contrast]) => !(contrast >= 4.5));
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(shown, theme):
    look(shown, theme=theme)
    assert shown.execute_script(CONTRASTS) == []


def test_everything_that_can_be_used_has_a_name(shown):
    shown.execute_script("arguments[0].click()", one(shown, "#table .open"))
    drawn(shown, 4, "dialog")
    for modal in (True, False):
        nodes = shown.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        used = [
            n for n in nodes if n.get("role", {}).get("value") in ("button", "combobox", "searchbox", "link", "image")
        ]
        assert len(used) >= (2 if modal else 30)
        assert [n for n in used if not n["ignored"] and not n["name"]["value"]] == []
        shown.execute_script("document.querySelector('dialog').close()")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_400_pixels_are_enough(shown, theme):
    look(shown, 400, theme)
    shown.refresh()
    drawn(shown, 1)
    assert shown.execute_script("return document.documentElement.scrollWidth") <= 400
    assert one(shown, "#table tbody .c3").rect["x"] < 400
    ActionChains(shown).move_to_element(all_of(shown, POINT)[0]).perform()
    WebDriverWait(shown, 5).until(lambda d: one(d, "#vg-tooltip-element").is_displayed())
    tooltip = one(shown, "#vg-tooltip-element").rect
    assert 0 <= tooltip["x"] < tooltip["x"] + tooltip["width"] <= 400
    one(shown, "#table .open").click()
    drawn(shown, 4, "dialog")
    assert all(chart.rect["width"] <= 400 for chart in all_of(shown, "dialog .chart svg"))
