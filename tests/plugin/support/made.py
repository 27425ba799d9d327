"""Rows, runs and files of pytest-benchmark, made up, and the head of a program whose clock goes as it says."""

import json
import sys

from pytest_flashinfer_perf.rows import fields, run_file
from pytest_flashinfer_perf.rows.parts import Parts
from pytest_flashinfer_perf.rows.row import PARTS, Row, Stats, is_own

H200 = {"gpu_uuid": "GPU-0", "device_name": "NVIDIA H200"}
CUPTI = {"instrument": "cupti", "cold_l2": "rotate", "cuda_graph": True, "seed": 42, "status": "ok"}
FACTS = {"routine": "decode", "family": "attention", "shape": "b16", "device": "cuda:0", "bound": "memory"}
MACHINE = {"driver": "580", "flashinfer": "0.7.2", "torch": "2.11"}

CLOCKED = """
import os
import random

import pytest

RNG = random.Random()


class Clock:
    now = step = 0.0

    def __call__(self):
        self.now += self.step
        return self.now


CLOCK = Clock()
"""


def row(case="decode/b16-fa3", us=100.0, *, stddev=0.001, rounds=30, busy=None, **info):
    """`us` and `busy` in microseconds; without `busy` nothing is known of its kernels."""
    backend = case.rpartition("-")[2]
    extra = {"case": case, "backend": backend, "cycles": None, "sm_ghz": None, **FACTS, **CUPTI, **H200, **info}
    if "placements" not in extra:
        extra["placements"] = placements((us or 0) * 1e-6, extra["cycles"])
    if busy is not None:
        extra |= split(us * 1e-6, busy * 1e-6, eager=not extra["cuda_graph"])
        extra["placements"] = [
            {**one, "busy": busy * 1e-6 * one["median"] / (us * 1e-6)} for one in extra["placements"]
        ]
    stats = {"median": None if us is None else us * 1e-6, "stddev": stddev * (us or 0) * 1e-6, "rounds": rounds}
    stats |= {"iqr": 1.349 * stats["stddev"], "mean": stats["median"]}
    name = f"test_decode[{case.partition('/')[2]}]"
    return {"name": name, "fullname": f"tests/test_decode.py::{name}", "extra_info": extra, "stats": stats}


def typed(*, median=100e-6, spread=0.0, samples=(1.0,) * 30, params=None, **info):
    """A row as a session has it; each field of `info` goes to the part that has it."""
    rounds = 1 if spread is None else len(samples)
    stats = Stats(median=median, mean=median, stddev=median * (spread or 0.0), iqr=0.0, rounds=rounds)
    info = {"case": "x", "status": "ok", "instrument": "cupti", **info}
    parts = {name: fields.read(kind, info, "made") for name, kind in PARTS.items()}
    facts = {name: value for name, value in info.items() if not is_own(name)}
    parts |= {"parts": Parts.among(info, "made"), "facts": facts}
    return Row(name=info["case"], fullname=info["case"], stats=stats, params=params or {}, **parts)


def split(span, busy, *, eager):
    """What a row says of kernels and gaps."""
    return {"busy": busy, "gap": span - busy, "gap_of": "host" if eager else "graph" if span > busy else None}


def placements(median, cycles=None, sd=0.009):
    """Five, whose figures have about this relative standard deviation."""
    around = [1 + sd * z for z in (-1.2, -0.6, 0.0, 0.6, 1.2)]
    return [{"median": median * factor, "cycles": cycles and cycles * factor} for factor in around]


def plain(name="test_plain", us=100.0):
    """A row of pytest-benchmark alone."""
    stats = {"median": us * 1e-6, "mean": us * 1e-6, "stddev": 1e-8, "iqr": 1e-8, "rounds": 100}
    return {"name": name, "fullname": f"t.py::{name}", "extra_info": {}, "stats": stats}


def document(*rows, when="2026-11-20T12:00:00+00:00", machine=None, unmeasured=(), commit=None):
    return {
        "benchmarks": list(rows),
        "machine_info": MACHINE if machine is None else machine,
        "commit_info": {"id": commit} if commit else {},
        "datetime": when,
        "version": "5.3.1",
        "flashinfer_perf": {"schema": 2, "unmeasured": list(unmeasured)},
    }


def run(*rows, source="made", **said):
    return run_file.parse(document(*rows, **said), source)


def saved(path, *rows, **said):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(*rows, **said)))
    return path


def calls(function):
    """How many calls of Python functions it makes, which is the same on every machine."""
    count = 0

    def counting(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(counting)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
