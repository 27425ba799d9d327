"""What calls cost the host, in the terminal and in reports."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import typed
from reports import benchmark, document, read

from pytest_flashinfer_perf.extensions import host as extension
from pytest_flashinfer_perf.extensions.host.host_gate import HostLimits
from pytest_flashinfer_perf.extensions.host.host_time import HostLine, HostTime
from pytest_flashinfer_perf.extensions.host.table import NOTHING, lines, waiting
from pytest_flashinfer_perf.extensions.reports import markdown
from pytest_flashinfer_perf.gate import thresholds
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.settings import project_file

DOCUMENT = (Path(__file__).parents[4] / "docs" / "host.md").read_text()
ITEM = HostLine("flashinfer/prefill.py:12 in run", 1)


def cost(us=20.0, plan_us=None, **seen):
    known = {"launches": 1, "allocations": 0, "synchronisations": 0}
    host = HostTime(us, (us,), False, plan_us, (plan_us,) if plan_us else (), **{**known, **seen})
    return fields.written(host)


@pytest.fixture
def measured(tmp_path):
    """Plans of one backend over batches, a call that waits and that the GPU waits for, one without figures."""
    plans = [benchmark("fa2", batch, host=cost(5.0, 100.0 + batch)) for batch in (1, 16, 64)]
    waits = benchmark("fa3", host=cost(40.0, synchronisations=1, allocations=2, lines=(ITEM,)))
    return read(tmp_path, document(*plans, waits, benchmark("cudnn", host=None)))


def test_the_terminal_says_what_each_call_takes_and_which_lines_wait(measured):
    shown = list(lines(measured[0].rows))
    assert "  fa2                       5.000 us  101.0 us  10.00 us        1      0     0" in shown
    assert "  fa3                       40.00 us         -  10.00 us        1      2     1" in shown
    assert "      waits: 1 x flashinfer/prefill.py:12 in run" in shown
    assert not any("cudnn" in line for line in shown)
    assert " ".join(waiting(measured[0].rows)).startswith("1 case with more host time than GPU time")


@given(st.floats(0.1, 1e9), st.none() | st.floats(0.1, 1e9), st.none() | st.integers(0, 9999))
def test_a_line_fits_in_80_columns(us, plan_us, count):
    seen = cost(us, plan_us, launches=count, allocations=count, synchronisations=count and min(count, 999))
    row = typed(host=seen, shape="s", backend="trtllm-native", resolved_backend="xqa", median=1.0)
    assert all(len(line) <= 80 for line in lines([row]))


def test_a_report_has_the_costliest_calls_first_and_names_who_waits(measured):
    text = "\n".join(markdown.lines(measured))
    assert re.findall(r"b(\d+)-s1024-fa2 \| 5.000 us \| 1\d\d.0 us", text) == ["64", "16", "1"]
    assert "1 x flashinfer/prefill.py:12 in run" in text


def test_without_a_gpu_the_terminal_says_so_and_a_report_has_no_such_section(tmp_path):
    assert list(lines([typed(host=None)])) == [NOTHING]
    assert list(extension.pytest_perf_sections(read(tmp_path, document(benchmark("fa2", host=None))))) == []


def names_in_tables(heading):
    section = DOCUMENT.partition(heading)[2].partition("\n## ")[0]
    first_columns = re.findall(r"^\|([^|]+)\|", section, re.MULTILINE)
    return {name for column in first_columns for name in re.findall(r"`(\w+)`", column)}


def test_every_field_is_documented():
    assert names_in_tables("## What is written") == {field.name for field in dataclasses.fields(HostTime)}


def test_the_thresholds_of_the_document_are_understood(tmp_path):
    settings = tmp_path / "flashinfer-perf.toml"
    settings.write_text(re.search(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)[1])
    read = thresholds.read(project_file.find(tmp_path, str(settings)), [HostLimits])
    names = {name for _, entry in read.entries for name in entry}
    assert names_in_tables("## Held to thresholds") == names
