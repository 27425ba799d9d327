"""The report as Markdown."""

import pytest
from reports import HOSTILE, ROUTINE, Sections, benchmark, document, extended_by, read, unmeasured, write

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.reports import markdown


@pytest.fixture
def told(tmp_path):
    """The lines of these documents' report."""
    return lambda *documents: list(markdown.lines(read(tmp_path, *documents)))


def test_markdown_escapes_names_and_folds_its_tables(tmp_path, capsys):
    piped = benchmark("a|b", shape="x_y", case="*c*")
    left = [unmeasured("failed", f"wrong\n{HOSTILE}", "fa3"), unmeasured()]
    run = write(tmp_path / "run.json", document(piped, benchmark("cudnn", us=5.0, shape="x_y"), left=left))
    assert cli.main(["report", "--markdown", str(run)]) == 0
    text = capsys.readouterr().out
    assert "<script>" not in text
    assert f"| {ROUTINE}/llama-b16-s1024-fa3 | wrong &lt;script&gt;alert('case')&lt;/script&gt;" in text
    assert "| x\\_y | 10.00 us | 5.000 us (fastest) |" in text
    assert "| \\*c\\* | a\\|b | 10.00 us |" in text
    assert text.count("<details>") == text.count("</details>") == 4
    assert "| 1 | it needs compute capability 10.0 |" in text


def test_the_title_of_a_fold_is_html_and_no_markdown(told):
    rows = [benchmark(backend, routine="mm_bf16") for backend in ("cudnn", "cublaslt")]
    assert any(line.startswith("<details><summary>mm_bf16: ") for line in told(document(*rows)))


def test_a_shared_place_is_shown_as_one(told):
    rows = [benchmark(backend, us=us) for backend, us in (("fa2", 10.0), ("cudnn", 10.02), ("fa3", 12.0))]
    rows += [benchmark("fa2", batch=1, us=10.0), benchmark("cudnn", batch=1, us=12.0)]
    lines = told(document(*rows))
    assert "| llama-b16-s1024 | 10.00 us (fastest) | 10.02 us (fastest) | 12.00 us |" in lines
    sentence = f"{ROUTINE}: fa2 is the fastest in both shapes, cudnn ties with it from b16 on"
    assert any(f"<summary>{sentence}<" in line for line in lines)
    assert lines[1] == f"{sentence}.\n"


def test_what_failed_as_expected_is_shown_as_such(told):
    text = "\n".join(told(document(benchmark(), left=[unmeasured("xfailed", "a known bug", "fa3")])))
    assert "1 failed as expected." in text
    assert "<details><summary>Failed as expected</summary>\n\n| cases | why |\n|---|---|\n| 1 | a known bug |" in text
    assert "Skipped" not in text


def test_sections_of_extensions_are_shown_as_answers_or_folded(told, monkeypatch):
    extended_by(monkeypatch, Sections())
    text = "\n".join(told(document(benchmark())))
    assert "### a step\n\n| kernel | share |\n|---|---|\n| a\\_b | 25% |\n\n- &lt;b&gt; is told of 1\n" in text
    assert "<details><summary>plans</summary>\n\n- nothing\n\n</details>" in text
    assert text.index("### a step") < text.index("<summary>plans<") < text.index("<summary>Every case<")
