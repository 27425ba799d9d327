"""xdist's workers: one for each GPU, one native JSON, and nothing lost when one dies."""

import pytest
from sessions import CASES, ENDED, GPUS, case, document, rows, sameness

pytest.importorskip("xdist")
QUICK = ("--perf-iters=3", "--perf-warmup=1", "--perf-backends=planted")
OPTED_IN = ("-o", "perf_gpu_workers=true")


@pytest.fixture
def many(pytester, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pytester.makeconftest(GPUS)
    pytester.makepyfile(test_many=CASES)
    return pytester


def test_every_end_costs_one_case_and_the_rest_is_as_in_a_single_process(many, monkeypatch):
    limit = ("--perf-timeout=4", "--benchmark-json=run.json", "--benchmark-group-by=func")
    done = many.runpytest_subprocess(*QUICK, *OPTED_IN, *limit, "-n", "auto")
    done.assert_outcomes(passed=16, failed=4)
    gpus = {(row["extra_info"]["visible"], row["extra_info"]["gpu_uuid"]) for row in rows(many).values()}
    assert gpus == {("0", "GPU-0"), ("1", "GPU-1")}
    left = {one["shape"]: one["ended"] for one in document(many)["flashinfer_perf"]["unmeasured"]}
    assert left == {case(n).removesuffix("-planted"): ended for n, ended in ENDED.items()}
    for n in ENDED:
        done.stdout.fnmatch_lines([f"pytest '--perf-case=* --s_kv {n} *'", "python3 flashinfer_benchmark.py *"])
    monkeypatch.setenv("WELL", "1")
    single = (*QUICK, "--benchmark-json=single.json", "--benchmark-group-by=func", "-p", "no:xdist")
    many.runpytest_subprocess(*single).assert_outcomes(passed=20)
    alone = rows(many, "single.json")
    assert set(alone) - set(rows(many)) == {f"test_many.py::test_decode[{case(n)}]" for n in ENDED}
    assert all(sameness(row) == sameness(alone[name]) for name, row in rows(many).items())
    assert document(many)["machine_info"] == document(many, "single.json")["machine_info"]
