"""Made-up rows and runs with all that a report shows."""

import json
import random

import pytest
from made import document as made_up
from made import placements, row

from pytest_flashinfer_perf import hookspecs, loading
from pytest_flashinfer_perf.extensions.reports import hooks, story
from pytest_flashinfer_perf.extensions.reports.sections import Section, Table

ROUTINE = "BatchDecodeWithPagedKVCacheWrapper"
UUID = "GPU-0a1b2c3d"
DEVICE = {"device": "cuda:0", "device_name": "NVIDIA H200", "gpu_uuid": UUID}


def roof(source, bytes_per_s, bfloat16, fp8_e4m3):
    return {"bytes_per_s": bytes_per_s, "flops_per_s": {"bfloat16": bfloat16, "fp8_e4m3": fp8_e4m3}, "source": source}


ROOFS = {
    UUID: {
        "measured": roof("measured", 4.5e12, 8e14, 1.5e15),
        "datasheet": roof("datasheet", 4.8e12, 9.9e14, 2e15),
    }
}
HOSTILE = "<script>alert('case')</script><img src=x onerror=alert(1)>"


def identity(backend="fa2", batch=16, s_kv=1024, routine=ROUTINE, **changes):
    shape = f"llama-b{batch}-s{s_kv}"
    known = {"routine": routine, "family": "attention", "backend": backend, "shape": shape, "case_tag": None}
    return {**known, "case": f"{routine}/{shape}-{backend}", "repro": f"pytest --perf-case='{backend}'", **changes}


def benchmark(backend="fa2", batch=16, s_kv=1024, us=10.0, samples=30, **changes):
    """A row with its samples and all that a report shows of it."""
    draw = random.Random(f"{backend}{batch}{s_kv}")
    data = [1e-6 * us * draw.uniform(0.99, 1.01) for _ in range(samples)]
    clocks = [draw.uniform(1.7, 1.9) for _ in range(min(samples, 30))]
    moved = 2e3 * batch * s_kv
    flops = moved * (2 * batch + s_kv / 1024)
    known = {
        **identity(backend, batch, s_kv),
        **DEVICE,
        "resolved_backend": backend,
        "flops": flops,
        "bytes": moved,
        "flops_dtype": "bfloat16",
        "tflops": flops / (us * 1e6),
        "tb_per_sec": moved / (us * 1e6),
        "sol_pct": 50.0,
        "peaks": "measured",
        "fallback": None,
        "notes": [],
        "kernels": [f"decode_kernel<{backend}>"],
        "cycles_per_call": [us * ghz * 1e3 for ghz in clocks],
        "sm_ghz_per_call": clocks,
        "sm_ghz": 1.8,
        "cycles": us * 1.8e3,
        "placements": placements(1e-6 * us, us * 1.8e3),
        **changes,
    }
    made = row(known.pop("case"), us, stddev=0.01, rounds=samples, **known)
    name = f"test_decode[{backend}]"
    params = {"routine": known["routine"], "backend": backend, "batch_size": batch, "s_kv": s_kv, "s_qo": 1}
    stats = {**made["stats"], "data": data}
    return {**made, "name": name, "fullname": f"t.py::{name}", "params": params, "stats": stats}


def unmeasured(outcome="skipped", reason="it needs compute capability 10.0", backend="trtllm-gen", **changes):
    return {**identity(backend), **DEVICE, "outcome": outcome, "reason": reason, **changes}


def document(*benchmarks, left=(), when="2026-11-20T10:00:00+00:00", **changes):
    machine = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11", "flashinfer": "0.7.2", "python_version": "3.12"}
    made = made_up(*benchmarks, when=when, machine=machine, unmeasured=left, commit="0123456789abcdef")
    made["commit_info"]["dirty"] = True
    made["flashinfer_perf"]["roofs"] = ROOFS
    return {**made, **changes}


def write(path, said):
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    return path


def read(folder, *documents):
    """The runs of these documents, from files."""
    return story.read([write(folder / f"{nth}.json", said) for nth, said in enumerate(documents)])


class Sections:
    """An extension that tells an answer, and more."""

    def pytest_perf_sections(self, runs):
        below = [f"<b> is told of {len(runs)}"]
        yield Section(
            "first", "Answer", [Table("a step", ("kernel", "share"), [("a_b", "25%")], below)], is_answer=True
        )
        yield Section("second", "More", [Table("plans", below=["nothing"])])


def extended_by(monkeypatch, *plugins):
    """As if these were the only extensions."""
    manager = pytest.PytestPluginManager()
    manager.add_hookspecs(hookspecs)
    manager.add_hookspecs(hooks)
    for plugin in plugins:
        manager.register(plugin)
    monkeypatch.setattr(loading, "manager", lambda: manager)
