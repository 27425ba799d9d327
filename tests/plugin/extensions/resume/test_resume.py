"""The journal, and what a run that was killed has left for the next one."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from made import typed
from sessions import AGAIN, CASES, rows

from pytest_flashinfer_perf.extensions.resume import journal
from pytest_flashinfer_perf.extensions.resume.journal import Journal, JournalError
from pytest_flashinfer_perf.extensions.resume.resuming import differences
from pytest_flashinfer_perf.session import reports

QUICK = ("--perf-iters=3", "--perf-warmup=1", "--perf-device=cpu", "--benchmark-json=run.json", "-k", "planted")


@pytest.fixture
def well(pytester, monkeypatch):
    monkeypatch.setenv("WELL", "1")
    pytester.makepyfile(test_many=CASES)
    return pytester


def finished(path):
    past = journal.read(path)
    return past.finished if past else {}


def samples(written):
    return {name: list(row["stats"]["data"]) for name, row in written.items()}


def all_is_there(pytester, kept, *options, of):
    """A run goes on with what is kept, and one after it has nothing left to do."""
    again = pytester.runpytest(*QUICK, *options, "--perf-resume")
    again.assert_outcomes(passed=of)
    again.stdout.fnmatch_lines([f"--perf-resume: {len(kept)} finished case* of *run.json.journal not run again"])
    written = samples(rows(pytester))
    assert kept
    assert {name: list(report.row.stats.data) for name, report in kept.items()}.items() <= written.items()
    assert set(finished(pytester.path / "run.json.journal")) == set(written)
    pytester.runpytest(*QUICK, *options, "--perf-resume", "-n0").assert_outcomes(passed=of)
    assert samples(rows(pytester)) == written
    assert len(written) == of


DIES = """
    if p.s_kv == 20 and "WELL" not in os.environ:
        os.kill(os.getpid(), 9)
"""


def test_what_was_finished_when_the_run_was_killed_is_kept_bit_for_bit(pytester, monkeypatch):
    few = ("-k", "planted and (s16 or s17 or s18 or s20 or s21)")
    pytester.makepyfile(test_many=CASES.replace("    ENDINGS.get", f"{DIES}    ENDINGS.get"))
    assert pytester.runpytest_subprocess(*QUICK, *few).ret == -signal.SIGKILL
    kept = finished(pytester.path / "run.json.journal")
    assert len(kept) == 3
    monkeypatch.setenv("WELL", "1")
    all_is_there(pytester, kept, *few, of=5)


@pytest.mark.more
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_all_that_a_run_has_started_may_be_killed_at_any_time(well, workers):
    command, path = [sys.executable, "-m", "pytest", *QUICK, *workers], well.path / "run.json.journal"
    after = random.Random(os.getpid()).randint(1, 18)
    run = subprocess.Popen(command, cwd=well.path, stdout=subprocess.DEVNULL, start_new_session=True)
    while run.poll() is None and not (path.exists() and path.read_text().count('{"finished"') >= after):
        time.sleep(0.002)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    all_is_there(well, finished(path), *workers, of=20)


def test_without_a_journal_everything_is_run_and_elsewhere_nothing_is_kept(well):
    few = (*QUICK[:-2], "-k", "planted and s16", "--perf-resume")
    first = well.runpytest(*few)
    first.assert_outcomes(passed=1, deselected=199)
    first.stdout.fnmatch_lines(["--perf-resume: no journal at *run.json.journal, everything is run"])
    well.runpytest(*few).stdout.fnmatch_lines(["--perf-resume: 1 finished case of *run.json.journal not run again"])
    (well.path / "plants.json").write_text('{"t": 1}')
    others = ("--perf-iters=4", "--perf-seed=3", "--perf-allow-output-mismatch", "--perf-plant=plants.json")
    elsewhere = well.runpytest(*few, *others)
    assert elsewhere.ret == pytest.ExitCode.USAGE_ERROR
    changed = {"iters": "was 3, is 4", "seed": "was None, is 3", "plant": "was {}, is {'t': 1.0}"}
    for name, said in {**changed, "allow-output-mismatch": "was False, is True"}.items():
        elsewhere.stderr.fnmatch_lines([f"*the journal is not of this run, *--perf-{name} {said}*: leave out*"])
    elsewhere.stdout.no_fnmatch_line("*--perf-resume:*not run again*")


def test_rows_of_code_that_changed_since_are_not_kept(pytester, monkeypatch):
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    own = "import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones({}))\n"
    path = pytester.path / "test_own.py"
    path.write_text(own.format(8))
    git = ("git", "-C", str(pytester.path), "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "test_own.py"), ("commit", "-q", "-m", "x")):
        subprocess.run([*git, *words], check=True)
    few = ("test_own.py", "--perf-iters=3", "--perf-device=cpu", "--benchmark-json=run.json", "--perf-resume")
    pytester.runpytest(*few).assert_outcomes(passed=1)
    path.write_text(own.format(16))
    changed = pytester.runpytest(*few)
    assert changed.ret == pytest.ExitCode.USAGE_ERROR
    changed.stderr.fnmatch_lines(["*not of this run, commit was *, is * with uncommitted changes *"])


def test_what_is_selected_again_is_what_is_counted(well):
    well.runpytest(*QUICK, "-k", "planted and (s16 or s17)").assert_outcomes(passed=2, deselected=198)
    again = well.runpytest(*QUICK, "-k", "planted and (s17 or s18)", "--perf-resume")
    again.assert_outcomes(passed=2, deselected=198)
    again.stdout.fnmatch_lines(["--perf-resume: 1 finished case of *run.json.journal not run again"])


def test_what_failed_at_its_end_is_run_again(pytester):
    pytester.makepyfile("""
        import pytest, torch

        @pytest.fixture
        def ends_badly():
            yield
            raise RuntimeError("at its end")

        def test_own(perf, ends_badly): perf.time(torch.neg, torch.ones(8))
    """)
    few = ("--perf-iters=3", "--perf-device=cpu", "--benchmark-json=run.json", "--perf-resume", "-W", "ignore")
    for where in (("-n1",), ()):
        pytester.runpytest(*few, *where).assert_outcomes(passed=1, errors=1)


def test_a_case_is_kept_as_the_line_that_it_was(pytester):
    line = "--perf-case=--routine mm_bf16 --backends torch --m 4 --n 4 --k 16 --num_iters {} --dry_run_iters 1"
    few = ("--perf-device=cpu", "--perf-resume", "--benchmark-json=run.json", "-W", "ignore")
    pytester.makepyfile("import pytest\n@pytest.mark.perf('mm_bf16')\ndef test_mm(perf, case): perf(case)")
    for iters in (3, 7):
        pytester.runpytest(line.format(iters), *few).assert_outcomes(passed=1)
        assert [row["stats"]["rounds"] for row in rows(pytester).values()] == [iters]


def test_a_group_of_pytest_benchmark_is_kept(pytester):
    pytester.makepyfile("""
        import torch

        def test_own(perf, benchmark):
            benchmark.group = "mine"
            perf.time(torch.neg, torch.ones(8))
    """)
    for _ in range(2):
        pytester.runpytest("--perf-iters=3", "--perf-device=cpu", "--perf-resume", "--benchmark-json=run.json")
        assert [row["group"] for row in rows(pytester).values()] == ["mine"]


def test_a_run_without_a_file_has_no_journal(pytester):
    pytester.makepyfile("import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones(8))")
    pytester.runpytest("--perf-iters=3", "--perf-device=cpu").assert_outcomes(passed=1)
    assert not list(pytester.path.rglob("*.journal"))
    done = pytester.runpytest("--perf-device=cpu", "--perf-resume")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--perf-resume: a run's journal is beside its --benchmark-json=FILE: name that file"])


def report(test, outcome="passed"):
    made = pytest.TestReport(test, ("a.py", 1, test), {}, outcome, None, "call")
    reports.add(made, row=typed(case=test, samples=(0.1, 0.2)), repeat=f"pytest {test}")
    return made


@pytest.fixture
def path(tmp_path):
    written = tmp_path / "run.journal"
    journal = Journal(written, "first", {"gpu": "H200"})
    for test in ("a", "b"):
        journal.finished(report(test))
    journal.finished(report("c", "failed"))
    journal.close()
    return written


@pytest.mark.parametrize("lost", range(1, 60, 4))
def test_a_torn_line_costs_its_own_case_alone(path, lost):
    whole = path.read_bytes()
    torn = whole[: whole.index(b'{"finished": "b"') + lost]
    path.write_bytes(torn)
    assert set(finished(path)) == {"a"}
    Journal(path, "first", {"gpu": "H200"}).finished(report("b"))
    assert set(finished(path)) == {"a", "b"}


@pytest.mark.parametrize("text", ["", '{"jour', '{"journal": 1, "ru'])
def test_a_journal_that_was_never_begun_is_none(path, text):
    path.write_text(text)
    assert journal.read(path) is None


@pytest.mark.parametrize(
    "text", ["garbage", "\xff\xfe\n", '{"journal": 1}\n', '{"journal": 1, "run": "a"}\n', '{"run": "a"}\n', "1\n2\n"]
)
def test_what_is_no_journal_is_said(path, text):
    path.write_text(text, encoding="latin-1")
    with pytest.raises(JournalError, match="leave out --perf-resume"):
        journal.read(path)


def test_what_fails_when_it_is_measured_again_is_not_finished(path):
    again = Journal(path, "first", {"gpu": "H200"})
    again.finished(report("a", "failed"))
    again.close()
    assert set(finished(path)) == {"b"}


def test_a_journal_is_of_one_run_and_says_when_it_cannot_be_read(path):
    past = journal.read(path)
    assert (past.run, set(past.finished), past.places) == ("first", {"a", "b"}, ({"gpu": "H200"},))
    assert differences(past.places, {"gpu": "H200"}) == []
    assert differences(past.places, {"gpu": "B200"}) == ["gpu was H200, is B200"]
    spoilt = path.read_text().replace('{"finished": "a"', '{"finished: "a"')
    path.write_text(spoilt)
    with pytest.raises(JournalError, match=r"run\.journal:2: not a line of a journal"):
        journal.read(path)
    path.write_text("[1]\n")
    with pytest.raises(JournalError, match="no journal of this version"):
        journal.read(path)
    late = Journal(path, "first", {"gpu": "H200"})
    Journal(path, "second", {}).close()
    late.finished(report("a"))
    assert finished(path) == {}
    assert journal.read(path.with_name("other")) is None
    with pytest.raises(JournalError, match="IsADirectoryError"):
        journal.read(path.parent)


def test_the_last_attempt_of_a_test_is_kept(pytester):
    pytester.makeconftest(AGAIN)
    pytester.makepyfile("""
        import pytest, torch
        ATTEMPTS = []

        @pytest.fixture
        def ends_badly_once():
            ATTEMPTS.append(1)
            yield
            assert len(ATTEMPTS) == 2

        def test_own(perf, ends_badly_once): perf.time(torch.neg, torch.ones(8))
    """)
    few, written = ("--perf-device=cpu", "--perf-iters=3", "--benchmark-json=run.json"), []
    for again in ((), ("--perf-resume",)):
        done = pytester.runpytest(*few, *again)
        written.append(rows(pytester))
    done.stdout.fnmatch_lines(["--perf-resume: 1 finished case of * not run again"])
    assert written[0] == written[1] != {}
