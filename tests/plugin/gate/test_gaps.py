"""Calls with gaps between their kernels, and suspects that a second instrument is asked about: verdicts by tables."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import row, run
from verdicts import rules, verdict

from pytest_flashinfer_perf.gate import effects, figures, words
from pytest_flashinfer_perf.gate.effects import Domain, Effect, Replicates
from pytest_flashinfer_perf.gate.judge import contradicts, judge
from pytest_flashinfer_perf.gate.match import Reason
from pytest_flashinfer_perf.gate.noise import Noise
from pytest_flashinfer_perf.gate.verdict import Verdict

SAME = ("SAME", "within-threshold", 0)
SLOWER, FASTER = ("SLOWER", "slower", 1), ("FASTER", "faster", 0)
BY_GAPS = ("SLOWER", "slower-gaps", 1)


def split(us, busy, **said):
    return row(us=us, busy=busy, bound=None, **said)


@pytest.mark.parametrize("cuda_graph", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((60, 50), (60, 50), SAME),
        ((60, 50), (62.5, 52.5), SLOWER),
        ((60, 50), (56, 52.5), SLOWER),  # and shorter as a whole: its gaps do not hide its kernels
        ((60, 50), (57.5, 47.5), FASTER),
        ((60, 50), (56, 40), FASTER),  # although its gaps are longer
        ((60, 50), (61, 50), SAME),
        ((60, 50), (260, 50), BY_GAPS),
        ((50, 50), (150, 50), BY_GAPS),
        ((60, 50), (260, 40), BY_GAPS),  # its kernels are faster, and nobody has anything of that
        ((900, 50), (52, 50), ("FASTER", "faster-gaps", 0)),
        ((60, None), (63, 52.5), SLOWER),  # of one side the kernels are not known: the whole time
        ((60, 50), (63, None), SLOWER),
    ],
)
def test_kernels_and_gaps_are_judged_apart(before, after, expected, cuda_graph):
    assert verdict(*(split(*side, cuda_graph=cuda_graph) for side in (before, after))) == expected


def test_gaps_of_launches_change_with_the_machine_and_those_of_a_graph_do_not():
    """Twice as much: no verdict where the host launches each kernel, one where a graph does."""
    before, after = ({"us": 100, "busy": 50}, {"us": 150, "busy": 50})
    for cuda_graph, expected in ((False, SAME), (True, BY_GAPS)):
        assert verdict(split(**before, cuda_graph=cuda_graph), split(**after, cuda_graph=cuda_graph)) == expected


def test_a_lower_clock_is_no_slower_kernel_of_a_call_with_gaps():
    before, after = (split(60, 50, cycles=96e3, sm_ghz=1.8), split(65, 55, cycles=96e3, sm_ghz=1.64))
    assert verdict(before, after) == ("AMBIGUOUS", "time-only", 2)


def test_gaps_are_shown_beside_the_kernels():
    sides = (split(60, 50, cuda_graph=False), split(73.5, 52.5, cuda_graph=False))
    judgement = judge([run(sides[0])], [run(sides[1])], rules())
    [judged] = judgement.cases
    assert [effect.replicates.domain for effect in judged.effects] == ["busy", "gaps"]
    assert words.times(judged) == "60.00 us -> 73.50 us", "the whole call is what people see"
    assert words.changes(judged) == "busy +5.00 %, gaps +18.33 %"
    assert "gaps between kernels 10.00 us -> 21.00 us: the host launches them one by one" in [*words.remarks(judged)]


def test_a_row_of_an_earlier_version_is_judged_as_it_was():
    """A fifth of the call has no kernel running: 6 % of noise are assumed, and 13 % may be noise."""
    old = {"bound": None, "busy_s": 40e-6, "span_s": 60e-6}
    assert verdict(row(us=60, **old), row(us=68, **old))[0] == "AMBIGUOUS"
    assert verdict(split(60, 40), split(68, 48)) == SLOWER


us = st.floats(5.0, 500.0)
known = st.tuples(us, st.none() | st.floats(0.1, 1.0))


@given(known, known, st.sampled_from(["memory", "compute", None]))
def test_which_figure_is_judged_depends_on_what_is_known_and_not_on_the_result(before, after, bound):
    def made(seen):
        whole, share = seen
        return row(us=whole, busy=None if share is None else whole * share, bound=bound)

    [one], [other] = (run(made(seen)).rows for seen in (before, after))
    [seen] = effects.replicates([one], [other], paired=False)
    is_split = before[1] is not None and after[1] is not None
    has_gaps = is_split and any(whole * share < whole for whole, share in (before, after))
    assert seen.domain == (Domain.BUSY if has_gaps else Domain.TIME)
    expected = [whole * share * 1e-6 if is_split else whole * 1e-6 for whole, share in (before, after)]
    assert [*seen.before, *seen.after] == pytest.approx(expected)
    [back] = effects.replicates([other], [one], paired=False)
    assert (back.domain, back.before, back.after) == (seen.domain, seen.after, seen.before)
    assert [one.value for one in figures.kernel_times([one, other], whole=True)] == pytest.approx(
        [before[0] * 1e-6, after[0] * 1e-6]
    )


@given(us, us, us)
def test_gaps_count_by_what_they_add_to_the_call(busy, gap, longer):
    """With equal kernels the change of the gaps is that of the whole call; with other kernels it is the same."""
    [before] = run(split(busy + gap, busy)).rows
    for kernels in (busy, 2 * busy):
        [after] = run(split(kernels + longer, kernels)).rows
        seen = effects.gap_replicates([before], [after], paired=False)
        assert seen.change == pytest.approx(math.log((busy + longer) / (busy + gap)))


def process(rng, slower=0.0, cases=20):
    """One process's rows: busy times that differ by 0.2 % from process to process, launches by a fifth."""

    def made(nth):
        host = math.exp(rng.gauss(0.0, 0.2))
        kernels = (20 + 5 * nth) * (1 + slower) * math.exp(rng.gauss(0.0, 0.002))
        placed = [
            (kernels * math.exp(rng.gauss(0.0, 0.004)), nth * host * math.exp(rng.gauss(0.0, 0.1))) for _ in range(5)
        ]
        busy, gap = (statistics.median(values) for values in zip(*placed, strict=True))
        found = split(busy + gap, busy, case=f"sequence-{nth}", cuda_graph=False)
        found["extra_info"]["placements"] = [{"median": (b + g) * 1e-6, "busy": b * 1e-6} for b, g in placed]
        return found

    return run(*map(made, range(cases)))


def test_gaps_blur_no_verdict_on_kernels():
    rng = random.Random(40)
    plain = [judge([process(rng)], [process(rng)], rules()).counts for _ in range(15)]
    slower = [judge([process(rng)], [process(rng, 0.03)], rules()).counts for _ in range(10)]
    assert sum(counts[Verdict.SLOWER] for counts in plain) == 0
    assert sum(counts[Verdict.AMBIGUOUS] for counts in plain) <= 3, "1 % of 300"
    assert sum(counts[Verdict.SLOWER] for counts in slower) >= 190, "95 % of 200"


# A second instrument.

GHZ = 1.8
OWN_US = 3.4  # that the stamps' launches take


def stamped(us, stamps, **said):
    """What CUPTI says, and what stamps say of the kernels."""
    said = {"bound": "memory", "queued": True, **said}
    made = row(us=us, cycles=(stamps + OWN_US) * GHZ * 1e3, sm_ghz=GHZ, **said)
    quiet = [0.999, 1.0, 1.001]
    made["extra_info"]["placements"] = [
        {"median": us * 1e-6 * by, "cycles": (stamps + OWN_US * by) * GHZ * 1e3}
        | ({"busy": said["busy"] * 1e-6 * by} if "busy" in said else {})
        for by in quiet
    ]
    return made


DISAGREE = ("AMBIGUOUS", "instruments-disagree", 2)


@pytest.mark.parametrize(
    ("before", "after", "said", "expected"),
    [
        ((20, 20), (24, 20), {}, DISAGREE),  # CUPTI says 1.2 times as much
        ((20, 20), (24, 20), {"bound": "compute"}, DISAGREE),  # its cycles are that time and the clock
        ((100, 100), (120, 100), {}, DISAGREE),
        ((20, 20), (25.2, 21), {}, DISAGREE),  # 5 % and 1.2 times that
        ((20, 20), (21, 21), {}, SLOWER),
        ((5, 5), (5.25, 5.25), {}, SLOWER),
        ((400, 400), (420, 428), {}, SLOWER),  # at another clock
        ((20, 20), (40, 38), {}, SLOWER),
        ((20, 20), (20.1, 22), {}, SAME),  # nobody suspects it
        ((20, 20), (16, 16), {}, FASTER),
        ((20, 20), (16, 20), {}, DISAGREE),
        ((120, 100), (100, 100), {}, DISAGREE),
        ((120, 100), (100, 100), {"queued": False}, FASTER),
        ((20, 20), (24, 20), {"queued": False}, SLOWER),  # the time between stamps is the host's
        ((20, 20), (24, 20), {"instrument": "events"}, SLOWER),
    ],
)
def test_a_suspect_is_one_for_both_instruments(before, after, said, expected):
    assert verdict(*(stamped(*side, **said) for side in (before, after))) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((130, 120), (290, 100), DISAGREE),  # CUPTI says 1.2 times as much of the kernels, and less of the gaps
        ((290, 100), (130, 120), DISAGREE),
        ((130, 100), (290, 100), BY_GAPS),
        ((290, 100), (130, 100), ("FASTER", "faster-gaps", 0)),
    ],
)
def test_gaps_are_believed_where_the_kernels_are(before, after, expected):
    assert verdict(*(stamped(us, 100, busy=busy) for us, busy in (before, after))) == expected


def test_cycles_count_the_gaps_of_queued_launches_too():
    """22 us of them are no kernels' and differ by 7 %: 2.5 % more cycles in the same busy time may be theirs."""
    sides = (stamped(220, 118, busy=96, bound=None), stamped(220, 121.1, busy=96, bound=None))
    assert verdict(*sides) == SAME
    sides = (stamped(96, 96, busy=95, bound=None), stamped(96, 98.5, busy=95, bound=None))
    assert verdict(*sides) == ("AMBIGUOUS", "cycles-only", 2)


@pytest.mark.parametrize(
    ("scatter", "change", "bound", "expected"),
    [
        (0.004, 1.03, None, SLOWER),
        (0.03, 1.03, None, ("AMBIGUOUS", "not-significant", 2)),  # as attention in torch, or a little more
        (0.03, 0.97, None, ("AMBIGUOUS", "not-significant", 2)),
        (0.03, 1.08, None, SLOWER),
        (math.inf, 1.03, None, SLOWER),  # nothing that was measured
        (0.03, 1.03, "memory", SLOWER),  # of a known kind, whose processes agree all the same
    ],
)
def test_calls_that_disagree_among_copies_of_their_arguments_disagree_between_processes(
    scatter, change, bound, expected
):
    def seen(busy):
        made = split(80, busy, cuda_graph=False)
        quiet = [{"median": 80e-6, "busy": busy * 1e-6 * by} for by in (0.998, 0.999, 1.0, 1.001, 1.002)]
        calls = [busy * 1e-6 * (1 + scatter * z) for z in (-1.6, -0.9, -0.5, -0.2, 0.0, 0.2, 0.5, 0.9, 1.6)]
        made["extra_info"] |= {"bound": bound, "placements": quiet, "busy_per_call": calls}
        return made

    assert verdict(seen(60), seen(60 * change)) == expected


def test_a_baseline_without_stamps_leaves_cupti_alone():
    assert verdict(row(us=20), stamped(24, 20)) == SLOWER


def test_both_figures_are_in_the_sentence():
    [judged] = judge([run(stamped(30, 20, busy=20))], [run(stamped(34, 20, busy=24))], rules()).cases
    assert judged.reason is Reason.INSTRUMENTS_DISAGREE
    assert judged.sentence == "CUPTI says +20.00 %, stamps around other calls say +0.00 %"


@given(
    st.floats(10.0, 2000.0),
    st.floats(1.03, 4.0) | st.floats(0.5, 0.97),
    st.floats(0.9, 1.15),
)
def test_what_both_see_is_not_contradicted_and_what_one_sees_alone_is(us, change, clock):
    def contradicted(cupti, stamps):
        [before], [after] = run(stamped(us, us * clock)).rows, run(stamped(us * cupti, us * clock * stamps)).rows
        [claim] = effects.effects(effects.replicates([before], [after], paired=False)[:1])
        [witness] = effects.effects([effects.stamped_replicates([before], [after], paired=False)])
        return contradicts(witness, claim)

    assert not contradicted(change, change)
    assert contradicted(1.2 * change if change > 1 else change / 1.2, 1.0)


@pytest.mark.parametrize(
    ("shown", "sd", "expected"), [(0.009, 1e-3, True), (0.009, 4e-3, False), (-0.02, 4e-3, True), (0.011, 1e-3, False)]
)
def test_a_witness_that_shows_less_than_half_contradicts_beyond_the_noise_of_both(shown, sd, expected):
    claim, witness = (
        Effect(Replicates("time", "memory", (1.0,), (math.exp(change),), paired=False), Noise(sd**2, 1e6, "pooled"))
        for change in (0.02, shown)
    )
    assert contradicts(witness, claim) is expected


ON_STREAMS = st.lists(st.sampled_from((0.0, 0.1, 1.2, 1.6)), min_size=3, max_size=3).flatmap(
    lambda slow: st.permutations([0.0, 0.15, *slow])
)


@given(ON_STREAMS, ON_STREAMS, st.floats(1.03, 1.5))
def test_streams_whose_gaps_are_twice_as_long_neither_contradict_nor_hide(first, second, change):
    """As ten kernels of 2 us on an H200: each of nine gaps takes 1 us, or 2.6 us more on some placements' streams."""

    def contradicted(cupti, kernels):
        def seen(busy, us, longer):
            made = row(us=100, busy=busy, queued=True, sm_ghz=GHZ, bound=None)
            cycles = [(us + 12.4 + 9 * one) * GHZ * 1e3 for one in longer]
            made["extra_info"] |= {
                "cycles": statistics.median(cycles),
                "placements": [{"median": 1e-4, "busy": busy * 1e-6, "cycles": one} for one in cycles],
            }
            return run(made).rows[0]

        before, after = seen(20, 20, first), seen(20 * cupti, 20 * kernels, second)
        [claim] = effects.effects(effects.replicates([before], [after], paired=False)[:1])
        [witness] = effects.effects([effects.stamped_replicates([before], [after], paired=False)])
        return contradicts(witness, claim)

    assert not contradicted(change, change)
    assert contradicted(1.2, 1.0)
