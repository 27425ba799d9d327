"""Rules and verdicts on single made-up rows."""

from made import run

from pytest_flashinfer_perf.gate import match
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Rules

CASE = "decode/b16-fa3"


def rules(*, allow="", strict=False, paired=False, glob="*", **asked):
    entries = ((glob, asked),) if asked else ()
    return Rules(Thresholds(entries), match.allowed(allow), strict, paired)


def verdict(base, head, held_to=None):
    """Of single rows: the verdict, its reason, the exit code."""
    judgement = judge([run(base)], [run(head)], held_to or rules())
    [judged] = judgement.cases
    return judged.verdict.value, judged.reason, judgement.exit_code
