"""The page as text; what a browser makes of it is in test_browser.py."""

import base64
import hashlib
import json
import re

import pytest
import vl_convert
from made import calls
from reports import HOSTILE, ROUTINE, Sections, benchmark, document, extended_by, read, unmeasured, write

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.reports import page


@pytest.fixture
def rendered(tmp_path):
    return lambda *documents: page.render(read(tmp_path, *documents))


def data(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def case(html, index=0, of="cases"):
    """As the page's script reads it: each column has a value for each case, or one for all."""
    return {name: values[index if len(values) > 1 else 0] for name, values in data(html)[of].items()}


def script(html):
    return re.findall(r"<script>(.*?)</script>", html, re.DOTALL)


def without_scripts(html):
    return re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def hostile():
    left = [unmeasured("failed", HOSTILE, HOSTILE, case=HOSTILE, repro=HOSTILE)]
    row = benchmark("fa2", case_tag=HOSTILE, shape=HOSTILE, case=HOSTILE + "2", kernels=[HOSTILE], repro=HOSTILE)
    return document(row, benchmark("cudnn", shape=HOSTILE, device_name=HOSTILE), left=left)


def test_names_stay_text_wherever_they_are_shown(rendered):
    html = rendered(hostile(), {**hostile(), "datetime": "2026-11-21T10:00:00+00:00"})
    page_alone = html.replace(script(html)[0], "")
    assert "<script>alert" not in page_alone
    assert "<img" not in page_alone
    assert "&lt;script&gt;alert(&#39;case&#39;)&lt;/script&gt;" in html
    assert case(html)["case"] == HOSTILE + "2"


def test_only_the_pages_own_script_may_run_and_nothing_may_be_loaded(rendered):
    html = rendered(document(benchmark()))
    [own] = script(html)
    policy = re.search(r'Content-Security-Policy"\s+content="(.*?)"', html)[1]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in policy or f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not re.findall(r"(?:src|href)=[\"'](?!#|data:)", without_scripts(html))


def test_every_plot_is_one_that_vega_lite_understands(rendered):
    html = rendered(document(benchmark(), benchmark("cudnn", flops_dtype="fp8_e4m3")))
    plots = {**data(html)["specs"], "roofline": next(iter(data(html)["figures"].values()))["spec"]}
    assert len(plots) == 5
    for name, spec in plots.items():
        drawn = vl_convert.vegalite_to_vega({**spec, "datasets": {spec.get("data", {}).get("name", "points"): []}})
        assert drawn["marks"], name


def test_roofs_are_those_of_the_types_that_were_used(rendered):
    [figure] = data(rendered(document(benchmark())))["figures"].values()
    assert {corner["roof"] for corner in figure["roofs"]} == {"measured bfloat16", "datasheet bfloat16"}
    flat = [corner["tflops"] for corner in figure["roofs"] if corner["roof"] == "measured bfloat16"]
    assert flat[1:] == [pytest.approx(800)] * 2
    slope = figure["roofs"][0]
    assert slope["tflops"] == pytest.approx(4.5 * slope["intensity"])


def test_a_case_without_its_work_has_no_point_and_that_is_said(rendered):
    own = benchmark(flops=None, bytes=None, tflops=None, tb_per_sec=None, sol_pct=None, bound=None)
    html = rendered(document(own, benchmark("cudnn")))
    assert "1 have no point" in " ".join(html.split())
    assert len(next(iter(data(html)["figures"].values()))["points"]) == 1


def test_a_run_without_samples_or_roofs_is_a_page_too(rendered):
    row = benchmark(cycles_per_call=None, sm_ghz_per_call=None, sm_ghz=None, kernels=None)
    del row["stats"]["data"]
    said = document(row)
    said["flashinfer_perf"] = {"schema": 2}
    html = rendered(said)
    assert case(html)["samples"] == []
    assert "No roof is known of this device" in html


def test_a_run_of_skips_alone_is_a_page_too(rendered):
    html = rendered(document(left=[unmeasured()]))
    assert "Nothing was measured." in html
    assert re.search(r"<h3>Skipped</h3>\s*<ul class=.left.><li>1 . it needs compute capability 10.0</li>", html)


def many(count):
    return [benchmark(f"backend{i % 10}", i // 10 + 1, 1024, us=i + 1) for i in range(count)]


def test_the_work_for_a_page_grows_as_its_rows_do(tmp_path):
    runs = {n: read(tmp_path, document(*many(n))) for n in (50, 100, 200)}
    page.render(runs[50])  # imports and caches
    few, more, most = (calls(lambda of=of: page.render(of)) for of in runs.values())
    assert most - more < 2.2 * (more - few)


def test_the_command_writes_a_page(tmp_path, capsys):
    run, out = write(tmp_path / "run.json", document(benchmark())), tmp_path / "deep" / "report.html"
    assert cli.main(["report", str(run), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert out.read_text().startswith("<!doctype html>")


OWN = """
import pytest, torch

def test_fast(perf):
    perf.time(torch.neg, torch.ones(8), flops=8, bytes=64)

def test_skipped(perf):
    pytest.skip("not <here>")

def test_wrong(perf):
    perf.time(torch.neg, torch.ones(8), reference=torch.ones(8))
"""


def test_a_session_writes_the_page_of_what_it_measured(session):
    done = session("--perf-html=out/r.html", test_mine=OWN)
    assert done.outcomes == {"passed": 1, "skipped": 1, "failed": 1}
    done.says("wrote *r.html")
    html = (done.folder / "out" / "r.html").read_text()
    by_case = {one["case"]: one for one in (case(html, i) for i in range(3))}
    fast, skipped, wrong = (by_case[f"test_mine.py::test_{name}"] for name in ("fast", "skipped", "wrong"))
    assert len(fast["samples"]) == 3
    assert (skipped["status"], skipped["reason"], wrong["status"]) == ("skipped", "not <here>", "failed")
    assert "not <here>" not in without_scripts(html)
    said = done.document["flashinfer_perf"]["unmeasured"]
    outcomes = [("skipped", "test_mine.py::test_skipped"), ("failed", "test_mine.py::test_wrong")]
    assert [(one["outcome"], one["case"]) for one in said] == outcomes
    assert said[1]["reason"].startswith("Failed: wrong answer: output 0: 8 elements differ")


def test_a_session_without_the_extra_says_so_before_it_measures(session, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    done = session("--perf-html=r.html", test_mine=OWN)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains("*--perf-html: an HTML report needs vl_convert: pip install * vl-convert-python*")


def test_a_session_that_measured_nothing_writes_no_page(session):
    done = session("--perf-html=r.html", test_other="def test_other(): pass")
    done.says("--perf-html: nothing written, no case was measured or skipped: *r.html")
    assert not (done.folder / "r.html").exists()


def test_a_shared_place_is_shown_as_one(rendered):
    rows = [benchmark(backend, us=us) for backend, us in (("fa2", 10.0), ("cudnn", 10.02), ("fa3", 12.0))]
    rows += [benchmark("fa2", batch=1, us=10.0), benchmark("cudnn", batch=1, us=12.0)]
    html = " ".join(without_scripts(rendered(document(*rows))).split())
    sentence = f"{ROUTINE}: fa2 is the fastest in both shapes, cudnn ties with it from b16 on"
    assert f'<p class="answer">{sentence}.</p>' in html
    assert re.findall(r'data-backend="(\w+)" data-seconds="[^"]+" class="best ok"', html) == ["fa2", "cudnn", "fa2"]


def test_sections_of_extensions_are_shown_with_their_bars(rendered, monkeypatch):
    extended_by(monkeypatch, Sections())
    html = " ".join(rendered(document(benchmark())).split())
    assert html.index('id="first"') < html.index('id="roofline"') < html.index('id="second"') < html.index('id="cases"')
    assert '<td class="share"><i style="width: 25%" aria-hidden="true"></i><span>25%</span></td>' in html
    assert "<li>&lt;b&gt; is told of 1</li>" in html
