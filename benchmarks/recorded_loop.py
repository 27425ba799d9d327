"""A decode loop with CUDA graphs whose calls are known, and whether a recording has them: recorded_loop.py SAID.json

    python benchmarks/recorded_loop.py plain.json
    flashinfer-perf record -o loop.jsonl -- python benchmarks/recorded_loop.py recorded.json
    python benchmarks/recorded_loop.py recorded.json --compare loop.jsonl

It writes how often it called each API, and the host's median times: of a step, which is a plan and the replay of a
graph, and of an eager call beside the same call below the recorder. With `--compare` it ends with 1 if the recording
has other counts. It needs a GPU, and `--compare` none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_flashinfer_perf.extensions.traffic import recording

LAYERS, STEPS, EAGER, SETTLED = 8, 4000, 2000, 2000
HEADS, KV_HEADS, DIM, PAGE, PAGES = 32, 8, 128, 16, 8192
FIRST = 200  # steps, of whose calls most are sampled
Engine = tuple[Callable[[list[int]], None], torch.cuda.CUDAGraph]


def engine(batch: int, caches: list[torch.Tensor], weight: torch.Tensor, made: Counter[str]) -> Engine:
    """How to plan for lengths, and the graph of all layers."""
    import flashinfer

    buffers = [torch.zeros(n, dtype=torch.int32, device="cuda") for n in (batch + 1, PAGES, batch)]
    names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
    how = {"use_cuda_graph": True, "use_tensor_cores": True, **dict(zip(names, buffers, strict=True))}
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", **how)
    q = torch.randn(batch, HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}

    def plan(lengths: list[int]) -> None:
        pages = [-(-length // PAGE) for length in lengths]
        indptr = torch.tensor([0, *itertools.accumulate(pages)], dtype=torch.int32)
        last = torch.tensor([(length - 1) % PAGE + 1 for length in lengths], dtype=torch.int32)
        indices = torch.arange(sum(pages), dtype=torch.int32, device="cuda")
        wrapper.plan(indptr, indices, last, HEADS, KV_HEADS, DIM, PAGE, **types)
        made["plan"] += 1

    def layers() -> None:
        x = q
        for cache in caches:
            x = wrapper.run(flashinfer.norm.rmsnorm(x.view(batch, -1), weight).view(q.shape), cache)
        made.update(run=LAYERS, rmsnorm=LAYERS)

    plan([1000] * batch)
    layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()
    made.subtract({"run": LAYERS, "rmsnorm": LAYERS})  # a capture is no call
    return plan, graph


def replayed(engines: dict[int, Engine], made: Counter[str]) -> list[float]:
    """The host's seconds of each step, which runs one of the graphs with new lengths."""
    seconds = []
    for nth in range(STEPS):
        batch = 16 if nth % 4 else 4
        plan, graph = engines[batch]
        begin = time.perf_counter()
        plan([500 + nth // 10 + 10 * one for one in range(batch)])
        graph.replay()
        seconds.append(time.perf_counter() - begin)
        made.update(run=LAYERS, rmsnorm=LAYERS)
    torch.cuda.synchronize()
    return seconds


def eager(weight: torch.Tensor, made: Counter[str]) -> tuple[float, float]:
    """The host's median seconds of a call, and of the same call below the recorder, in turns."""
    import flashinfer

    x = torch.randn(16, HEADS * DIM, dtype=torch.bfloat16, device="cuda")
    counted = flashinfer.norm.rmsnorm
    own = getattr(counted, "__wrapped__", counted)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(EAGER // 50):
        for _ in range(100):
            begin = time.perf_counter()
            (counted, own)[turn % 2](x, weight)
            seconds[turn % 2 == 0].append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    made["rmsnorm"] += EAGER
    return statistics.median(seconds[True]), statistics.median(seconds[False])


def said() -> dict[str, Any]:
    shape = (PAGES, 2, PAGE, KV_HEADS, DIM)
    caches = [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
    weight = torch.ones(HEADS * DIM, dtype=torch.bfloat16, device="cuda")
    made: Counter[str] = Counter()
    engines = {batch: engine(batch, caches, weight, made) for batch in (4, 16)}
    steps = replayed(engines, made)
    call, own = eager(weight, made)
    first, settled = statistics.median(steps[:FIRST]), statistics.median(steps[SETTLED:])
    times = {"call": call, "own": own, "first_steps": first, "settled_steps": settled}
    return {"made": made, "us": {name: round(1e6 * seconds, 2) for name, seconds in times.items()}}


def differences(path: Path, made: dict[str, int]) -> list[str]:
    counted: Counter[str] = Counter()
    for call in recording.read(path).calls:
        counted[call.api.rpartition(".")[2]] += call.count
    return [f"{name}: {counted[name]:,} in {path}, {n:,} made" for name, n in made.items() if counted[name] != n]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("said", type=Path)
    parser.add_argument("--compare", type=Path, metavar="RECORDING")
    asked = parser.parse_args()
    if asked.compare:
        found = differences(asked.compare, json.loads(asked.said.read_text())["made"])
        print("\n".join(found) or "all counts are exact")
        return bool(found)
    asked.said.write_text(json.dumps(said()))
    print(asked.said.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
