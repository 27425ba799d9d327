"""xdist's workers: one for each GPU, one native JSON, and nothing lost when one dies."""

import shlex

import execnet
import pytest
import torch
from sessions import CASES, ENDED, GPUS, OPTED_IN, case, document, rows, sameness

from pytest_flashinfer_perf.extensions.many import gpus, workers
from pytest_flashinfer_perf.extensions.many.workers import WorkerBrief
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.plugin import cases
from pytest_flashinfer_perf.session.stash import SETTINGS
from pytest_flashinfer_perf.settings.settings import Settings

QUICK = ("--perf-iters=3", "--perf-warmup=1", "--perf-timeout=20", "--benchmark-group-by=func")


@pytest.fixture
def many(pytester, monkeypatch):
    """The fakes are made in each process, this one too."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for home, name in ((torch.cuda, "device_count"), (devices, "_gpu")):
        monkeypatch.setattr(home, name, getattr(home, name))
    pytester.makeconftest(GPUS)
    pytester.makepyfile(test_many=CASES)
    return pytester


def ended(pytester):
    return {one["shape"]: one["ended"] for one in document(pytester)["flashinfer_perf"]["unmeasured"]}


def shapes(*sizes):
    return {case(n).removesuffix("-planted"): ENDED[n] for n in sizes}


@pytest.mark.parametrize(
    ("sizes", "options"),
    [((18, 19, 20), ("-n1",)), pytest.param(range(16, 36), ("-nauto", "--perf-timeout=6"), marks=pytest.mark.more)],
    ids=["a crash", "each end"],
)
def test_an_end_costs_one_case_and_the_rest_is_as_in_a_single_process(many, monkeypatch, sizes, options):
    chosen = ("-k", f"planted and ({' or '.join(f's{n}' for n in sizes)})")
    badly = [n for n in ENDED if n in sizes]
    done = many.runpytest(*QUICK, *OPTED_IN, *options, *chosen, "--benchmark-json=run.json")
    done.assert_outcomes(passed=len(sizes) - len(badly), failed=len(badly))
    assert ended(many) == shapes(*badly)
    for n in badly:
        done.stdout.fnmatch_lines([f"pytest '--perf-case=* --s_kv {n} *'"])
    here = rows(many)
    gpus = {(row["extra_info"]["visible"], row["extra_info"]["gpu_uuid"]) for row in here.values()}
    assert gpus == ({("0", "GPU-0"), ("1", "GPU-1")} if "-nauto" in options else {("0", "GPU-0")})
    monkeypatch.setenv("WELL", "1")
    single = (*QUICK, *chosen, "--benchmark-json=single.json", "-p", "no:xdist")
    many.runpytest(*single).assert_outcomes(passed=len(sizes))
    alone = rows(many, "single.json")
    assert set(alone) - set(here) == {f"test_many.py::test_decode[{case(n)}]" for n in badly}
    assert all(sameness(row) == sameness(alone[name]) for name, row in here.items())
    assert document(many)["machine_info"] == document(many, "single.json")["machine_info"]


def test_what_a_worker_refuses_is_one_error(many):
    done = many.runpytest(*QUICK, "-n", "1", "--perf-backends=fa9")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --perf-backends: unknown name 'fa9', did you mean fa3?*"])


def test_a_mistake_that_a_worker_finds_late_ends_the_run_with_its_sentence(session):
    late = "import pytest\n@pytest.mark.benchmark(max_time='x')\ndef test_late(perf): pass"
    done = session("-n1", quick=False, test_a=late)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains("ERROR: *::test_late: benchmark(max_time='x') must be a number of seconds")


def test_a_way_to_hand_out_tests_is_none_without_workers(session):
    """pytest-benchmark alone would be off."""
    done = session("--dist=load", test_own="def test_own(perf): perf.time(int)")
    assert (done.outcomes, len(done.rows)) == ({"passed": 1}, 1)


def test_what_ended_its_worker_is_run_again_from_where_pytest_was_started(pytester, monkeypatch):
    folder = pytester.mkdir("deep er")
    (folder / "test_below.py").write_text("import os\ndef test_dies(perf): os._exit(3)\n")
    pytester.makeini("[pytest]")
    monkeypatch.chdir(folder)
    done = pytester.runpytest(*QUICK, "--perf-device=cpu", "-n1", "test_below.py", "-W", "ignore")
    [[_, test]] = [shlex.split(line) for line in done.outlines if line.startswith("pytest ")]
    pytester.runpytest(test, "--collect-only", "-q").stdout.fnmatch_lines(["1 test collected*"])


def test_a_worker_that_fails_by_itself_is_no_success(pytester):
    """xdist alone: exit code 0, where it was the last case."""
    pytester.makeconftest("""
        import os

        def pytest_runtest_logreport(report):
            if "PYTEST_XDIST_WORKER" in os.environ:
                raise OSError("the disk is full")
    """)
    pytester.makepyfile("def test_one(): pass")
    assert pytester.runpytest("-n1").ret == pytest.ExitCode.INTERNAL_ERROR


def test_only_load_distributes_what_is_timed_and_only_here(pytester, monkeypatch):
    config = pytester.parseconfigure()
    config.stash[SETTINGS] = Settings()
    here = execnet.XSpec("popen")
    assert [workers.refusal(dist, here) for dist in ("load", "no")] == [None, None]
    for dist in ("each", "loadscope", "loadfile", "loadgroup", "worksteal"):
        with pytest.raises(pytest.UsageError, match=f"^--dist={dist}: .*; say --dist=load"):
            workers.refuse(config, WorkerBrief(dist=workers.refusal(dist, here)))
    for elsewhere in ("ssh=host", "popen//via=host"):
        assert "--perf-shard" in workers.refusal("load", execnet.XSpec(elsewhere))
    workers.refuse(config, WorkerBrief(gpu="shared"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(pytest.UsageError, match="shared"):
        workers.refuse(config, WorkerBrief(gpu="shared"))


@pytest.mark.parametrize(("dist", "restarts"), [("load", workers.AS_OFTEN_AS_NEEDED), ("loadfile", None)])
def test_workers_are_replaced_without_limit_only_where_a_test_runs_once(pytester, dist, restarts):
    config = pytester.parseconfigure(*OPTED_IN, "--tx=popen", f"--dist={dist}")
    assert config.getoption("maxworkerrestart") == restarts


TWO = ["popen", "popen"]
SAME = "popen//env:CUDA_VISIBLE_DEVICES=1"


@pytest.mark.parametrize(
    ("specs", "gpus", "pinned", "sentences"),
    [
        (TWO, "01", ["0", "1"], [None, None]),
        (TWO, ["GPU-a", "GPU-b"], ["GPU-a", "GPU-b"], [None, None]),
        ([SAME, "popen"], "01", ["1", "0"], [None, None]),
        (["popen"], "", [None], [None]),
        ([*TWO, "popen"], "01", ["0", "1", None], [None, None, "3 workers and 2 GPUs: "]),
        ([SAME, SAME], "01", ["1", "1"], ["two workers are pinned to the same "] * 2),
    ],
)
def test_each_worker_has_a_gpu_of_its_own_or_says_why_not(specs, gpus, pinned, sentences):
    made = [execnet.XSpec(spec) for spec in specs]
    workers.pin(made, list(gpus))
    assert [spec.env.get("CUDA_VISIBLE_DEVICES") for spec in made] == pinned
    said = [workers.obstacle(spec, made, list(gpus), opted_in=True) for spec in made]
    assert [one and one[: len(start or "")] for one, start in zip(said, sentences, strict=True)] == sentences
    unasked = [execnet.XSpec(spec) for spec in TWO]
    assert all("perf_gpu_workers" in workers.obstacle(spec, unasked, ["0"], opted_in=False) for spec in unasked)


@pytest.mark.parametrize(
    ("visible", "device", "known"),
    [
        (None, "auto", ["0", "1"]),
        ("3,1", "cuda", ["3", "1"]),
        ("GPU-b,GPU-a", "auto", ["GPU-b", "GPU-a"]),
        ("3,1", "cuda:1", ["3"]),
        ("3,1", "cpu", []),
        ("3,1", "cpu:any", []),
    ],
)
def test_workers_stay_inside_of_the_callers_gpus(monkeypatch, visible, device, known):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.visible_to(device) == known


@pytest.mark.parametrize(
    ("arguments", "count"),
    [((), 5), (("--perf-device=cuda",), 5), (("--perf-device=cuda:3",), 1), (("--perf-device=cpu",), 1)],
)
def test_auto_is_the_number_of_gpus_where_the_project_asks_for_it(pytester, monkeypatch, arguments, count):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = pytester.parseconfig(*OPTED_IN, *arguments)
    assert config.hook.pytest_xdist_auto_num_workers(config=config) == count
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "7")  # xdist's own
    for left_alone in ((), OPTED_IN, (*OPTED_IN, "--perf-device=cpu:any")):
        config = pytester.parseconfig(*left_alone)
        assert config.hook.pytest_xdist_auto_num_workers(config=config) == 7


def test_the_suite_asks_for_a_worker_for_each_gpu_without_a_word_of_ours(pytester, monkeypatch):
    monkeypatch.chdir(cases.root())
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    config = pytester.parseconfig()
    assert config.hook.pytest_xdist_auto_num_workers(config=config) == 5
