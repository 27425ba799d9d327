"""A decode step of Llama-3.1-8B in one CUDA graph, beside the sum of its kernels: real_decode_step.py RUN.json

The run is of `--perf-model=llama-3.1-8b --perf-step='--batch 64 --context 8192'`; the same flags may follow its name.
The step calls what the budget of that run calls, by the backends that are fastest there. Each layer has its own
weights and its own cache, all random, and gets what the layer before it made. Beside the kernels of the budget, each
layer copies its queries to where attention reads them, and the logits become float32. The time of the step is the
median of replays in which nothing was traced; the table is of one more replay.

With `--tp N` it is one of N processes that `python -m torch.distributed.run --nproc-per-node N` starts. Each has its
part of each layer, and NCCL adds what they make: the rows of `all-reduce` are those of its backend `nccl`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.models import budget
from pytest_flashinfer_perf.extensions.models import deployment as steps
from pytest_flashinfer_perf.extensions.models import plan as plans
from pytest_flashinfer_perf.extensions.models.budget import Budget
from pytest_flashinfer_perf.extensions.ranks.rank_environment import NO_MULTICAST
from pytest_flashinfer_perf.extensions.reports import story
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.gemm.mm_bf16 import MmBf16Inputs
from pytest_flashinfer_perf.spec.routine import LaunchOptions

KNOWN = {**all_routines(), **all_apis()}
MODEL, LAYERS, HEADS, KV_HEADS, DIM = "llama-3.1-8b", 32, 32, 8, 128
REPLAYS, WITHIN = 30, 0.1
SAMPLING = "sampling"  # the kernel that a step may do without
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
HIDDEN = HEADS * DIM
Layer = dict[str, Any]  # the weights by name, and the inputs of attention


def chosen(found: Budget) -> dict[str, str]:
    """The backend that is fastest for each kernel."""
    return {one.kernel.name: one.row.identity.backend or "" for one in found.entries if one.row}


class Step:
    """The calls of a step, and all that they read and write."""

    def __init__(self, asked: steps.Step, found: Budget) -> None:
        self.chosen = chosen(found)
        problems = {kernel.name: dict(kernel.problems[0]) for kernel in found.plan.kernels if kernel.problems}
        self.routines = {name: KNOWN[problem.pop("routine")] for name, problem in problems.items()}
        self.sizes: dict[str, Any] = {name: self.routines[name].params(**params) for name, params in problems.items()}
        self.rand = torch.Generator(DEVICE).manual_seed(0)
        self.tokens, self.gpus = asked.tokens, asked.spread.tp
        self.heads, self.kv_heads = HEADS // self.gpus, KV_HEADS // self.gpus
        self.layers = [self.layer() for _ in range(LAYERS)]
        self.head = self.weights("lm-head")
        self.embedded = self.drawn(self.tokens, HIDDEN)
        self.norm = self.drawn(HIDDEN)
        self.attend = self.built("attention", self.layers[0]["attention"])
        self.multiply = {name: self.built(name, self.operands(name)) for name in ("qkv", "o", "gate-up", "down")}
        self.multiply["lm-head"] = self.built("lm-head", self.operands("lm-head"))
        self.positions = torch.full((self.tokens,), asked.context - 1, dtype=torch.int32, device=DEVICE)
        self.requests = torch.arange(self.tokens, dtype=torch.int32, device=DEVICE)
        self.rotations = rotations(asked.context)
        self.seed, self.offset = (torch.full((1,), n, dtype=torch.int64, device=DEVICE) for n in (7, 0))

    def drawn(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE, generator=self.rand)

    def weights(self, name: str) -> Tensor:
        p = self.sizes[name]
        return self.drawn(p.n, p.k).div_(p.k**0.5)

    def layer(self) -> Layer:
        """With the page table of the first layer, as all layers of a model share one."""
        attention = self.routines["attention"].inputs(self.sizes["attention"], self.rand, DEVICE)
        if getattr(self, "table", None) is None:
            self.table = attention.table
        made = {name: self.weights(name) for name in ("qkv", "o", "gate-up", "down")}
        norms = {"norm": self.drawn(HIDDEN), "next norm": self.drawn(HIDDEN)}
        return {**made, **norms, "attention": attention._replace(table=self.table)}

    def operands(self, name: str) -> MmBf16Inputs:
        p = self.sizes[name]
        b = self.head if name == "lm-head" else self.layers[0][name]
        return MmBf16Inputs(self.drawn(p.m, p.k), b, None, torch.empty(p.m, p.n, dtype=torch.bfloat16, device=DEVICE))

    def built(self, name: str, inputs: Any) -> Callable[[Any], object]:
        backend = self.routines[name].backends[self.chosen[name]]
        return backend.build(self.sizes[name], inputs, LaunchOptions(self.chosen[name], cuda_graph=True)).launch

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        out = torch.empty(self.tokens, self.sizes[name].n, dtype=torch.bfloat16, device=DEVICE)
        self.multiply[name](MmBf16Inputs(a, b, None, out))
        return out

    def summed(self, part: Tensor) -> Tensor:
        if self.gpus > 1:
            dist.all_reduce(part)
        return part

    def run(self, *, sampled: bool) -> Tensor:
        import flashinfer

        residual = self.embedded.clone()
        x = flashinfer.norm.rmsnorm(residual, self.norm)
        for layer in self.layers:
            attended = self.attended(layer, self.product("qkv", x, layer["qkv"]))
            x = self.summed(self.product("o", attended, layer["o"]))
            flashinfer.norm.fused_add_rmsnorm(x, residual, layer["norm"])
            x = flashinfer.activation.silu_and_mul(self.product("gate-up", x, layer["gate-up"]))
            x = self.summed(self.product("down", x, layer["down"]))
            flashinfer.norm.fused_add_rmsnorm(x, residual, layer["next norm"])
        logits = self.product("lm-head", x, self.head).float()
        if not sampled:
            return logits.argmax(-1)
        sample: Callable[..., Tensor] = flashinfer.sampling.top_k_top_p_sampling_from_logits
        return sample(logits, 50, 0.9, seed=self.seed, offset=self.offset)

    def attended(self, layer: Layer, qkv: Tensor) -> Tensor:
        import flashinfer

        x = layer["attention"]
        q, k, v = qkv.split([count * DIM for count in (self.heads, self.kv_heads, self.kv_heads)], dim=-1)
        flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(self.positions, q, k, DIM, self.rotations)
        k, v = (part.unflatten(-1, (self.kv_heads, DIM)) for part in (k, v))
        table = x.table
        flashinfer.page.append_paged_kv_cache(
            k, v, self.requests, self.positions, x.kv.pages, table.indices, table.indptr, table.last_page_len, "HND"
        )
        x.q.copy_(q.unflatten(-1, (self.heads, DIM)))
        self.attend(x)
        out: Tensor = x.out
        return out.flatten(1)


def rotations(context: int) -> Tensor:
    angles = torch.arange(context, device=DEVICE)[:, None] * 5e5 ** -(torch.arange(0, DIM, 2, device=DEVICE) / DIM)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def captured(step: Step, *, sampled: bool = True) -> torch.cuda.CUDAGraph:
    step.run(sampled=sampled)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for events meanwhile
        tokens = step.run(sampled=sampled)
    graph.replay()
    torch.cuda.synchronize()
    assert ((tokens >= 0) & (tokens < step.sizes["lm-head"].n)).all(), tokens
    assert all(layer["attention"].out.isfinite().all() for layer in step.layers)
    return graph


def held(step: Step, *, sampled: bool) -> tuple[torch.cuda.CUDAGraph, tuple[str, ...]]:
    """The step as a graph, and the kernels that it does without."""
    if not sampled:
        print("without sampling")
        return captured(step, sampled=False), (SAMPLING,)
    try:
        return captured(step), ()
    except RuntimeError as error:
        print(f"without sampling, which no graph holds: {error}")
        return captured(step, sampled=False), (SAMPLING,)


def seconds(graph: torch.cuda.CUDAGraph) -> list[float]:
    times = []
    for _ in range(REPLAYS):
        if dist.is_initialized():
            dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return times


def traced(graph: torch.cuda.CUDAGraph) -> dict[str, list[float]]:
    """Of one replay: the microseconds of each time that each kernel ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    found = defaultdict(list)
    for event in profile.events():
        if event.device_type.name == "CUDA":
            found[event.name].append(event.time_range.elapsed_us())
    return found


def shown(found: Mapping[str, Sequence[float]]) -> Iterator[str]:
    yield f"{'kernel':70} {'count':>6} {'mean':>10} {'per step':>11}"
    for name, each in sorted(found.items(), key=lambda pair: -sum(pair[1])):
        yield f"{name[:70]:70} {len(each):6} {statistics.mean(each):7.2f} us {sum(each) / 1e3:8.3f} ms"
    yield f"kernels in one traced replay: {sum(map(sum, found.values())) / 1e3:.3f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN.json")
    parser.add_argument("--dry-run", action="store_true", help="name the backends of the step, without a GPU")
    steps.add_options(parser)
    args = parser.parse_args()
    asked = steps.read(args)
    found = budget.of_run(plans.completed(plans.of(MODEL, asked), KNOWN), story.read([args.run])[0])
    missing = {entry.kernel.name for entry in found.unmeasured}
    if missing - {SAMPLING}:
        sys.exit(f"{args.run} has no row of {', '.join(sorted(missing))}")
    if args.dry_run:
        print("\n".join(f"{name}: {backend}" for name, backend in chosen(found).items()))
        return 0
    others = {"all-reduce": "nccl"}.items() - chosen(found).items() if asked.spread.tp > 1 else ()
    if others:
        sys.exit(f"{args.run} has other rows than {others}: measure all-reduce by --perf-backends=nccl alone")
    joined(asked.spread.tp)
    alone = asked.spread.tp == 1  # where GPUs share the vocabulary, no one has all logits to sample from
    graph, left_out = held(Step(asked, found), sampled=alone and SAMPLING not in missing)
    times = seconds(graph)
    whole, total = statistics.median(times), sum(e.seconds for e in found.entries if e.kernel.name not in left_out)
    low, high = min(times), max(times)
    told = [
        f"step: {1e3 * whole:.3f} ms, {1e3 * low:.3f} to {1e3 * high:.3f} in {REPLAYS} replays",
        f"sum of the budget: {1e3 * total:.3f} ms, {total / whole - 1:+.1%} beside the step",
        *shown(traced(graph)),
    ]
    if DEVICE.index == 0:
        print("\n".join(told))
    return 0 if abs(total / whole - 1) <= WITHIN else 1


def joined(gpus: int) -> None:
    """Take this process's GPU, and meet those of the others."""
    torch.cuda.set_device(DEVICE)
    if gpus > 1:
        os.environ.update(NO_MULTICAST)
        dist.init_process_group("nccl", device_id=DEVICE)


if __name__ == "__main__":
    sys.exit(main())
