"""Files that extensions read give a result or one sentence, whatever they hold."""

import contextlib

import pytest
from made import document, row
from mutations import as_json, as_lines, as_text, few_and, said_of

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.extensions.fuzz import findings
from pytest_flashinfer_perf.extensions.fuzz.fuzzing import is_finding
from pytest_flashinfer_perf.extensions.prove import planting
from pytest_flashinfer_perf.extensions.resume import journal
from pytest_flashinfer_perf.gate import verdict
from pytest_flashinfer_perf.settings import project_file

FINDING = {"flashinfer_perf_finding": 1, "line": ["--routine", "mm_fp8", "--m", "4"], "case": "c"}
RUN = document(*(row(f"decode/b16-{name}") for name in ("fa2", "fa3")), commit="0123456789abcdef")


SETTINGS = """
[thresholds]
"gemm/*" = { slower_host = "5 %", max_launches = 3, no_sync = false }
[models]
"llama*" = { slower_step = "1%", max_step_us = 900.0 }
"""


def read_finding(path):
    if is_finding(path):
        with contextlib.suppress(ValueError):  # no line
            findings.line_of(path)


def read_settings(path):
    verdict.read_rules(project_file.read(path), loading.manager().hook)


JOURNAL = [
    {"journal": 2, "run": "r", "place": {"device": "cpu"}},
    {"finished": "t.py::a", "run": "r", "outcome": "passed", "report": {"repeat": "pytest t.py::a"}},
    {"finished": "t.py::b", "run": "r", "outcome": "failed", "report": {}},
]
READERS = {
    "journal": (journal.read, as_lines, JOURNAL),
    "finding": (read_finding, as_json, FINDING),
    "settings": (read_settings, as_text, SETTINGS),
    "slowdowns": (planting.read, as_json, {"t.py::a": 1e-6, "t.py::b": 2}),
}


@few_and(2500, 120)
@pytest.mark.parametrize("kind", READERS)
def test_a_file_is_read_or_refused_with_a_sentence_that_names_it(tmp_path, kind, count):
    said = said_of(tmp_path / "strange", *READERS[kind], count)
    assert len(said) > 10 or kind == "finding"
