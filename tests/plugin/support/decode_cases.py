"""A test file with two small cases of decode, and the options to run it quickly on the CPU."""

import json

DECODE = "BatchDecodeWithPagedKVCacheWrapper"
TINY = "--page_size 4 --batch_size 2 --s_kv 16 --num_qo_heads 4 --num_kv_heads 2 --head_dim_qk 16"
QUICK = ("--perf-iters=3", "--perf-warmup=1", "--perf-device=cpu", "-p", "no:cacheprovider")
TEST = f"""
import pytest

@pytest.mark.perf_cases({DECODE!r}, {TINY!r}, {TINY!r} + " --q_dtype float16 --kv_dtype float16")
def test_decode(perf, case):
    perf(case)
"""


def rows(pytester, name="run.json"):
    return json.loads((pytester.path / name).read_text())["benchmarks"]
