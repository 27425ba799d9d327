"""Calls that fail: the lines of who wrote them are shown, and none of this package."""

import re

import pytest

FAILING = """
import torch
X = torch.ones(8)

def broken(x, *, deep=False):
    if deep:
        torch.empty(2).reshape(3)
    raise LookupError("of my kernel")

def late(x, seen=[]):
    seen.append(x)
    return x.neg() if len(seen) < 3 else broken(x)

def chained(x):
    try:
        broken(x)
    except LookupError as error:
        raise OSError("my own words") from error

def test_function(perf): perf.time(broken, X)
def test_timed(perf): perf.time(late, X)
def test_reference(perf): perf.time(torch.neg, X, reference=lambda: broken(None))
def test_deep(perf): perf.time(broken, X, deep=True)
def test_builtin(perf): perf.time(torch.neg, X, X)
def test_chained(perf): perf.time(chained, X)
"""
SHOWN = """
>*perf.time(broken, X)
>*raise LookupError(*
E *LookupError: of my kernel
>*perf.time(late, X)
*else broken(x)
>*raise LookupError(*
>*reference=lambda: broken(None))
>*raise LookupError(*
>*deep=True)
>*torch.empty(2).reshape(3)
E *RuntimeError: shape *
>*perf.time(torch.neg, X, X)
E *TypeError: neg() takes 1 *
>*broken(x)
>*raise LookupError(*
>*perf.time(chained, *
>*raise OSError(*
E *OSError: my own words
"""


@pytest.mark.parametrize("style", ["auto", "short"])
def test_the_authors_lines_are_shown_and_none_of_ours_but_in_a_full_trace(session, style):
    done = session(f"--tb={style}", test_own=FAILING)
    assert done.outcomes == {"failed": 6}
    assert not re.search(r"pytest_flashinfer_perf.*\.py|contextlib", done.out)
    if style == "auto":
        done.says(*SHOWN.split("\n")[1:-1])
        session("-k", "test_function", "--full-trace").says("*measure.py:*", "*verification.py:*", "*test_own.py:*")
