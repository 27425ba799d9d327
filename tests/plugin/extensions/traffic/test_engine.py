"""The scheduler of examples/engine.py, which is plain Python; and what the engine says without a GPU."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from hypothesis import given, strategies

from pytest_flashinfer_perf.extensions.traffic import replay

ENGINE = Path(__file__).parents[4] / "examples" / "engine.py"


def loaded():
    spec = importlib.util.spec_from_file_location("engine", ENGINE)
    module = sys.modules["engine"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


engine = loaded()
sizes = strategies.tuples(strategies.integers(1, 200), strategies.integers(1, 60))


@given(strategies.lists(sizes, min_size=1, max_size=12), strategies.integers(20, 60), strategies.integers(8, 64))
def test_every_request_is_answered_and_no_page_is_used_twice(asked, pages, chunk):
    """Whatever arrives; with few pages requests are preempted, and resume."""
    scheduler = engine.Scheduler(pages, chunk, most=4)
    for number, (prompt, answer) in enumerate(asked):
        scheduler.add(engine.Request(number, prompt, answer))
    decoded = 0
    for _ in range(50_000):
        kind, batch = scheduler.step()
        if not batch:
            break
        decoded += len(batch) if kind == "decode" else 0
        used = [page for request in scheduler.running for page in request.pages]
        assert len(used) == len(set(used))
        assert sorted([*used, *scheduler.free]) == list(range(pages))
        for request, count in batch:
            assert request in scheduler.running
            assert len(request.pages) * engine.PAGE >= request.cached + count
            assert kind == "prefill" or count == 1
        assert kind == "decode" or sum(count for _, count in batch) <= chunk
        scheduler.done(batch)
    assert sorted(one.number for one in scheduler.finished) == list(range(len(asked)))
    assert all(one.answered == one.answer for one in scheduler.finished)
    assert sorted(scheduler.free) == list(range(pages))
    by_prompts = len(asked) + scheduler.preempted  # each prefill ends with a token
    assert decoded + by_prompts >= sum(answer for _, answer in asked)


def test_its_recording_that_ships_has_a_case_for_nearly_all_of_its_time():
    """It is written by `python tools/example_recording.py`."""
    found = replay.of_file(ENGINE.with_name("traffic.jsonl"))
    assert {entry.case.routine.name for entry in found.entries if entry.case} == {
        "BatchDecodeWithPagedKVCacheWrapper",
        "BatchPrefillWithPagedKVCacheWrapper",
        "flashinfer.activation.silu_and_mul",
        "flashinfer.norm.fused_add_rmsnorm",
        "flashinfer.page.append_paged_kv_cache",
        "flashinfer.rope.apply_rope_pos_ids_inplace",
        "flashinfer.sampling.top_p_sampling_from_probs",
    }
    assert found.plan.gaps == []


def test_without_a_gpu_it_is_one_sentence():
    done = subprocess.run(
        [sys.executable, ENGINE, "--seconds", "1"], capture_output=True, text=True, check=False,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "needs an NVIDIA GPU" in done.stderr
