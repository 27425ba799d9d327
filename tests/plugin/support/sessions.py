"""Test files for whole sessions: fake GPUs that are CPUs with names, and cases that end badly."""

import json

OPTED_IN = ("-o", "perf_gpu_workers=true")
GPUS = """
import os
from dataclasses import replace

import torch
from pytest_flashinfer_perf.machine import devices

def visible():
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")

def gpu(index):
    return replace(devices.find("cpu"), name="fake GPU", uuid=f"GPU-{visible()[index]}")

torch.cuda.device_count = lambda: len(visible())
devices._gpu = gpu
"""
CASES = """
import ctypes, os
import pytest, torch
from pytest_flashinfer_perf.routines.attention.decode import decode

def hangs(): ctypes.PyDLL(None).sleep(1000)  # keeps the GIL
def runs_out(): torch.empty(1 << 50)
def breaks(): raise RuntimeError("CUDA error: an illegal memory access was encountered")

ENDINGS = {19: os.abort, 23: hangs, 27: runs_out, 31: breaks} if "WELL" not in os.environ else {}
SHAPE = "--page_size 4 --batch_size 2 --num_qo_heads 4 --num_kv_heads 2 --head_dim_qk 16"

@decode.backend("planted")
def _planted(p, x, how):
    ENDINGS.get(p.s_kv, int)()
    return decode.backends["torch"].build(p, x, how)

@pytest.mark.perf_cases(decode, *(f"{SHAPE} --s_kv {n}" for n in range(16, 36)))
def test_decode(perf, benchmark, case):
    benchmark.extra_info["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    perf(case)
"""
ENDED = {19: "abort", 23: "timeout", 27: "out-of-memory", 31: "illegal-access"}


def case(n):
    return f"b2-s{n}-h4-kv2-d16-p4-planted"


def document(pytester, name="run.json"):
    return json.loads((pytester.path / name).read_text())


def rows(pytester, name="run.json"):
    return {row["fullname"]: row for row in document(pytester, name)["benchmarks"]}


OF_A_RUN = (
    *(
        "worker",
        "case_s",
        "gpu_uuid",
        "visible",
        "tflops",
        "tb_per_sec",
        "spread",
        "sol_pct",
        "status",
        "peak_memory_bytes",
    ),
    *("placements", "placement_spread", "stopped", "contention"),
)


def sameness(row):
    """What two runs of one case have in common, whichever process measured it."""
    kept = {name: value for name, value in row["extra_info"].items() if name not in OF_A_RUN}
    stats = {name: row["stats"][name] for name in ("rounds", "iterations")}
    return {**row, "stats": stats, "extra_info": kept}


# As pytest-rerunfailures does it: a failure that is run again is reported as an outcome of its own.
AGAIN = """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl
def pytest_runtest_protocol(item, nextitem):
    for left in (1, 0):
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            is_repeated = left and report.failed
            report.outcome = "rerun" if is_repeated else report.outcome
            item.ihook.pytest_runtest_logreport(report=report)
            if is_repeated:
                break
        else:
            return True
"""
