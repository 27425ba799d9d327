"""Detect tests that are missing only because their path changed: the runs were started in different folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_flashinfer_perf.gate.verdict import Judged

REMEDY = "start both in the same folder, or give both the same --rootdir"


def sentences(cases: Iterable[Judged]) -> Iterator[str]:
    """A note if cases of the baseline are in this run under another folder."""
    listed = list(cases)
    gone = {_without_folder(one.name): one.name for one in listed if not one.case.head and one.case.base}
    come = {_without_folder(one.name): one.name for one in listed if not one.case.base}
    both = [test for test in gone if test is not None and test in come]
    if both:
        first = f"{gone[both[0]]} is {come[both[0]]} here"
        yield f"{len(both)} of the MISSING are here under the name of another folder ({first}): {REMEDY}"


def _without_folder(name: str) -> tuple[str, str] | None:
    """Nothing of a name that is not a test's: such cases are matched wherever they lie."""
    path, colons, test = name.partition("::")
    return (path.rpartition("/")[2], test) if colons else None
