"""What is made of processes that ran identical code and of planted ones: counts, bounds, noise, exit codes."""

import math

import pytest
from made import plain, row, run

from pytest_flashinfer_perf.extensions.prove import proof as proof_shown
from pytest_flashinfer_perf.extensions.prove.proof import Frequency, prove
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Rules, Verdict

QUIET = (100.0, 100.1, 99.9, 100.05)
LEVELS = (100.0, 150.0, 100.1, 150.1)


def sides(plain_us=QUIET, share=0.5, *, name="decode/b16-fa3", **info):
    """A case's row in each process, as it is and with a share of it planted."""
    planted_us = 100.0 * share or None
    plain_rows = [row(name, us=us, **info) for us in plain_us]
    return plain_rows, [row(name, us=us * (1 + share), planted_us=planted_us, **info) for us in plain_us]


def proved(*of_cases, rules=None):
    """Of cases that all processes have."""
    plain_rows, planted_rows = zip(*of_cases, strict=True)
    return prove(processes("plain", *plain_rows), processes("planted", *planted_rows), rules or Rules())


def processes(side, *of_cases):
    return [run(*rows, source=f"{side}-{n}.json") for n, rows in enumerate(zip(*of_cases, strict=True))]


def printed(proof):
    return " ".join(" ".join(proof_shown.lines(proof)).split())


def test_identical_code_that_agrees_and_extra_work_that_is_found():
    proof = proved(sides(), sides(name="decode/b1-fa3"))
    assert (proof.exit_code, proof.troubles) == (0, ())
    assert proof.called(Verdict.SLOWER) == Frequency(0, 24, 4)
    assert (proof.failed, proof.detected) == (Frequency(0, 12, 2), Frequency(32, 32, 8))
    case = proof.cases[0]
    assert math.expm1(case.measured) == pytest.approx(0.5)
    assert case.observed == pytest.approx(0.00085, rel=0.05)
    assert case.predicted == pytest.approx(case.identical[0].effects[0].noise.sd, rel=0.01)
    for sentence in (
        "identical code: SLOWER in 0 of 24 verdicts (1% allowed), FASTER in 0; exit code 1 in 0 of 12 comparisons",
        "extra work: found in 32 of 32 verdicts (95% wanted)",
        "only 2 comparisons of identical code share no process",
        "which shows with 95 % confidence: SLOWER below 52.7%, exit code 1 below 77.6%, found above 68.8%",
        "the gate keeps its promise here",
    ):
        assert sentence in printed(proof)


def test_a_case_on_two_levels_is_called_slower_by_itself():
    """Only one of two cases: it makes as many runs fail as if both did."""
    proof = proved(sides(LEVELS, share=2.0), sides(name="decode/b1-fa3"))
    assert proof.exit_code == 1
    assert [case.called(Verdict.SLOWER).hits for case in proof.cases] == [4, 0]
    assert (proof.called(Verdict.SLOWER).hits, proof.called(Verdict.FASTER).hits, proof.failed.hits) == (4, 4, 4)
    assert proof.detected.share == 1
    assert proof.cases[0].predicted / proof.cases[0].observed < 0.6
    assert "the gate does not keep its promise here" in printed(proof)


def test_a_noisy_case_among_many_fails_by_the_runs_that_it_breaks():
    quiet = [sides(name=f"mla/b{n}-fa3") for n in range(60)]
    proof = proved(sides(LEVELS, share=2.0), *quiet)
    assert proof.called(Verdict.SLOWER).share < 0.01
    assert (proof.failed.hits, proof.exit_code) == (4, 1)


def test_ambiguous_is_not_found():
    """Its time is longer, and its cycles are as they were."""
    proof = proved(sides(cycles=180_000.0, sm_ghz=1.8))
    assert {judged.verdict for judged in proof.cases[0].extended} == {Verdict.AMBIGUOUS}
    assert (proof.detected.hits, proof.exit_code) == (0, 1)


def test_extra_work_below_the_threshold_is_not_counted():
    proof = proved(sides(share=0.015), sides(name="decode/b1-fa3"))
    assert proof.detected == Frequency(16, 16, 4)
    assert proof.exit_code == 0
    assert "not counted, +1.50 % was planted where +2.00 % is allowed: decode/b16-fa3" in printed(proof)
    alone = proved(sides(share=0.015))
    assert alone.exit_code == 2
    assert "NOT MEASURED: nothing was planted that is larger than its threshold: say a larger --share" in printed(alone)


def test_the_projects_thresholds_decide():
    rules = Rules(Thresholds((("*", {"slower": 0.60}),)))
    proof = proved(sides(LEVELS), rules=rules)
    assert (proof.called(Verdict.SLOWER).hits, proof.exit_code) == (0, 2)


def test_what_a_busy_machine_measured_proves_nothing():
    busy = {"seconds": 1.0, "cores": 2, "waited": 0.7, "load": 6.0}
    proof = proved(sides(), sides(name="decode/b1-fa3", instrument="wall", contention=busy))
    assert (proof.failed.hits, proof.detected.tries, proof.exit_code) == (0, 16, 2)
    assert "NOT MEASURED: decode/b1-fa3: AMBIGUOUS: others used this machine: load 6 on 2 cores" in printed(proof)


def test_a_plain_benchmark_is_not_planted():
    benchmarks = [plain(us=us) for us in QUIET]
    proof = proved(sides(), (benchmarks, benchmarks))
    assert proof.detected.tries == 16
    assert "not planted, its time is not measured by perf in this process: t.py::test_plain" in printed(proof)


def test_a_broken_absolute_stands_beside_it():
    rules = Rules(Thresholds((("*", {"min_tflops": 500.0}),)))
    proof = proved(sides(tflops=400.0), rules=rules)
    assert proof.failed.share == 1
    assert "broken whatever changed: decode/b16-fa3: " in printed(proof)


def test_a_case_that_a_process_lacks_is_not_measured():
    of_plain, of_planted = (processes(*side) for side in zip(("plain", "planted"), sides(), strict=True))
    more = [row("b")] * 4
    plain_too, planted_too = (
        processes(name, rows, more) for name, rows in zip(("plain", "planted"), sides(), strict=True)
    )
    assert [case.name for case in prove(plain_too, planted_too, Rules()).cases] == ["decode/b16-fa3", "b"]
    for lacking in ((plain_too, of_planted), ([plain_too[0], *of_plain[1:]], of_planted)):
        torn = prove(*lacking, Rules())
        assert ([case.name for case in torn.cases], torn.exit_code) == (["decode/b16-fa3"], 2)
        assert "NOT MEASURED: b: MISSING: in the baseline, not in this run" in printed(torn)
    late = prove(of_plain, planted_too, Rules())
    assert late.exit_code == 2
    assert "NOT MEASURED: b: NEW" in printed(late)


def test_nothing_in_common_is_nothing_measured():
    proof = prove(processes("plain", [row("a")] * 3), processes("planted", [row("b")] * 3), Rules())
    assert (proof.cases, proof.exit_code) == ((), 2)
    assert "NOT MEASURED: nothing was compared" in printed(proof)


def test_what_is_shown_fits():
    proof = proved(sides(LEVELS, share=2.0))
    table = list(proof_shown.lines(proof))
    assert table[:2] == [
        "        slower   faster    found    planted    detects       sd  assumed",
        "decode/b16-fa3",
    ]
    assert table[2].split()[:5] == ["4/12", "4/12", "16/16", "+200.00", "%"]
    assert "  23.40 %  " in table[2]
    assert max(map(len, table)) <= 80


def test_a_share_of_all_is_bounded_by_all():
    assert Frequency(4, 4, 4).lower == pytest.approx(0.05 ** (1 / 4))
