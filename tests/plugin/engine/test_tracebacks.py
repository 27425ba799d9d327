"""Whose lines a traceback has: those of authors and of what they call, not those of this package between them."""

import sys
from types import ModuleType

import pytest

from pytest_flashinfer_perf.engine import tracebacks
from pytest_flashinfer_perf.engine.tracebacks import PACKAGE


@pytest.mark.parametrize(
    ("file", "is_ours"),
    [
        (PACKAGE / "engine" / "timing.py", True),
        (PACKAGE / "routines" / "gemm" / "mm_bf16.py", False),
        (PACKAGE / "plugin" / "items.py", False),
        (PACKAGE / "shown" / "inside" / "backend.py", False),
        (PACKAGE / "hidden" / "loop.py", True),
        ("/site-packages/flashinfer/testing/utils.py", True),
        ("/home/somebody/test_mine.py", False),
    ],
)
def test_lines_between_an_author_and_what_is_called_are_ours(monkeypatch, file, is_ours):
    monkeypatch.setitem(sys.modules, f"{PACKAGE.name}.shown", ModuleType("shown"))
    sys.modules[f"{PACKAGE.name}.shown"].__tracebackhide__ = False
    monkeypatch.setitem(sys.modules, f"{PACKAGE.name}.hidden", ModuleType("hidden"))
    assert tracebacks.is_between(str(file)) == is_ours


def test_an_error_and_its_causes_lose_those_lines():
    def call(code):
        exec(compile("def ours(): theirs()", code, "exec"), given := {"theirs": fails})
        given["ours"]()

    def fails():
        raise ValueError("theirs")

    def wraps():
        try:
            call(str(PACKAGE / "engine" / "timing.py"))
        except ValueError as error:
            raise KeyError("ours") from error

    with pytest.raises(KeyError) as seen:
        wraps()
    kept = tracebacks.without_ours(seen.value, seen.tb)
    names = {
        name: [line.tb_frame.f_code.co_name for line in tracebacks._each(of)]
        for name, of in [("error", kept), ("cause", seen.value.__cause__.__traceback__)]
    }
    assert names["error"][-1] == "wraps"
    assert names["cause"] == ["wraps", "call", "fails"]
