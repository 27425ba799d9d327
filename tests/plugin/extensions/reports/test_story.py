"""What is made of runs, before anything is drawn."""

import pytest
from reports import UUID, benchmark, document, read, unmeasured

from pytest_flashinfer_perf.extensions.reports import backends, story
from pytest_flashinfer_perf.rows.run_file import RunError


@pytest.fixture
def told(tmp_path):
    """The outcomes of these documents, read from files."""
    return lambda *documents: story.outcomes(read(tmp_path, *documents))


def with_median(value):
    return {**benchmark(), "stats": {**benchmark()["stats"], "median": value}}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({**benchmark(), "stats": None}, "benchmark 0 (t.py::test_decode[fa2]): stats must be an object, got None"),
        *((with_median(none), "t.py::test_decode[fa2] has an invalid time") for none in (0.0, None, float("nan"))),
        ({**benchmark(), "extra_info": [1] * 999}, f"object, got {str([1] * 99)[:60]}..."),
        (benchmark(status="fine"), "status must be one of ok, noisy, invalid, wrong, got 'fine'"),
    ],
)
def test_what_is_no_row_is_an_error_with_its_name(tmp_path, said, sentence):
    with pytest.raises(RunError, match=r"0\.json") as error:
        read(tmp_path, document(said))
    assert sentence in str(error.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(RunError, match=r"nowhere\.json does not exist"):
        story.read([tmp_path / "nowhere.json"])


def test_other_benchmarks_are_counted_and_left_out(tmp_path):
    plain, with_a_case = ({**benchmark(), "extra_info": extra} for extra in ({}, {"case": "mine"}))
    [run] = read(tmp_path, document(benchmark(), plain, with_a_case))
    assert (len(run.ours), len(run.rows)) == (1, 3)


def test_the_newest_of_a_case_is_told_whatever_the_order_of_files(told):
    later = document(benchmark(us=12.0), when="2026-11-21T10:00:00+00:00")
    [one] = told(later, document(benchmark(us=10.0)))
    assert one.row.median == pytest.approx(12e-6)


def test_a_case_that_fails_now_is_told_as_failed(told):
    failed = unmeasured("failed", "wrong answer", backend="fa2")
    [one] = told(document(benchmark()), document(left=[failed], when="2026-11-21T10:00:00+00:00"))
    assert (one.status, one.measured) == ("failed", False)


def test_a_case_that_a_run_has_twice_is_two(told):
    assert len(told(document(benchmark(us=10.0), benchmark(us=11.0)))) == 2


def test_two_cards_of_one_model_are_told_apart(told):
    found = told(document(benchmark(), benchmark(gpu_uuid="GPU-other-ffffff")))
    assert story.devices(found) == {UUID: "NVIDIA H200 (1b2c3d)", "GPU-other-ffffff": "NVIDIA H200 (ffffff)"}


def test_what_was_skipped_before_it_had_a_device_belongs_to_the_runs_only_one(told):
    bare = {"case": "test_mine.py::test_a", "outcome": "skipped", "reason": "no"}
    assert {one.place for one in told(document(benchmark(), left=[bare]))} == {UUID}


def test_the_fastest_sound_backend_wins(told):
    rows = [benchmark("fa2", us=10.0), benchmark("cudnn", us=8.0), benchmark("broken", us=1.0, status="invalid")]
    [comparison] = backends.comparisons(told(document(*rows)))
    assert comparison.backends == ("fa2", "cudnn", "broken")
    assert comparison.wins == {"cudnn": 1}


AT = [(batch, s_kv) for batch in (1, 16) for s_kv in (1024, 4096, 8192)]
SENTENCES = {
    "a a a a a a": "a is the fastest in all 6 shapes",
    "ab ab ab ab ab ab": "a and b tie in all 6 shapes",
    "a ab ab a ab ab": "a is the fastest in all 6 shapes, b ties with it from s4096 on",
    "a b b a b b": "b is the fastest from s4096 on, a up to s1024",
    "a a a b b b": "a is the fastest up to b1, b from b16 on",
    "a b a a a a": "a is the fastest in 5 of 6 shapes, b in 1 of 6 shapes",
    "b a ab b a a": "a is the fastest from s4096 on, b up to s1024, b ties with it in 1 of 6 shapes",
}


@pytest.mark.parametrize(("fastest", "sentence"), SENTENCES.items())
def test_the_fastest_are_said_with_where_they_are(told, fastest, sentence):
    at = zip(AT, fastest.split(), strict=True)
    rows = [benchmark(name, *where, us=10 if name in best else 20) for where, best in at for name in "ab"]
    [comparison] = backends.comparisons(told(document(*rows)))
    assert comparison.sentence == sentence


def test_the_answer_has_a_sentence_for_each_routine_until_there_are_many(told):
    rows = [benchmark(name, routine=f"r{i}") for i in range(8) for name in "ab"]
    rows += [benchmark(name, routine="r0", cold_l2="none") for name in "ab"]
    said = backends.answers(list(backends.comparisons(told(document(*rows)))))
    assert said[0].startswith("r0 on cuda:0 NVIDIA H200: cupti, cold L2 by rotation")
    assert said[1] == "r1: a and b tie in the only shape."
    assert (len(said), said[-1]) == (backends.MOST + 1, "3 more comparisons of backends below.")


def test_a_row_with_a_wrong_answer_never_wins_and_is_told_among_the_failures(told):
    found = told(document(benchmark("fa2", us=1.0, status="wrong", refcheck="wrong"), benchmark("cudnn")))
    [comparison] = backends.comparisons(found)
    assert comparison.wins == {"cudnn": 1}
    said = story.answer(found)
    assert (said.measured, [case[-4:] for case, _ in said.failed]) == (2, ["-fa2"])
    assert "1 measured with a wrong answer, as was allowed." in said.sentences


def test_one_backend_is_no_comparison(told):
    assert not list(backends.comparisons(told(document(benchmark(), benchmark(batch=1)))))


def test_times_of_two_instruments_do_not_stand_side_by_side(told):
    rows = [benchmark("fa2"), benchmark("cudnn", instrument="events")]
    assert not list(backends.comparisons(told(document(*rows))))


def test_the_answer_comes_in_sentences(told):
    left = [unmeasured(), unmeasured("failed", "wrong", "fa3")]
    run = document(benchmark(), benchmark("cudnn", status="noisy"), left=left)
    found = told(run)
    said = story.answer(found)
    assert said.measured == 2
    assert said.sentences[0] == "2 cases of 1 routine measured on NVIDIA H200."
    assert [s.split()[:2] for s in said.sentences[1:]] == [["1", "failed:"], ["1", "noisy:"], ["1", "skipped,"]]
