"""A case's numbers as properties of its test."""

import xml.etree.ElementTree as ET

from made import typed

from pytest_flashinfer_perf.extensions.reports import properties


def test_a_rows_numbers_take_the_place_of_those_of_an_earlier_attempt():
    known = [("perf_median_us", 1.0), ("mine", 2)]
    properties.put(typed(median=1.23456789e-4, tflops=5.0), known)
    assert known == [("mine", 2), ("perf_median_us", 123.456789), ("perf_tflops", 5.0), ("perf_status", "ok")]


def test_junits_xml_shows_the_numbers_of_each_measured_test(session):
    own = "import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones(8))\ndef test_other(): pass\n"
    done = session("--junitxml=run.xml", test_own=own)
    root = ET.parse(done.folder / "run.xml").getroot()
    names = {test.get("name"): {one.get("name") for one in test.iter("property")} for test in root.iter("testcase")}
    assert names == {"test_own": {"perf_median_us", "perf_status"}, "test_other": set()}
