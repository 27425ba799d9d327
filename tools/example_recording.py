"""Write examples/traffic.jsonl, without a GPU: python tools/example_recording.py [FILE]

The recorder counts the calls of `examples/engine.py`, whose scheduler gets two seconds of requests at a pace of 10 ms a
step. FlashInfer's functions are replaced by ones of the same signature that compute nothing, as are torch's products
and its CUDA graphs: shapes, lengths and counts are those of the engine, and nothing is timed.
"""

import contextlib
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import flashinfer
import torch

from pytest_flashinfer_perf.extensions.traffic import hooks, merging, pieces, recording
from pytest_flashinfer_perf.extensions.traffic.recorder import CallRecorder

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import engine  # type: ignore[import-not-found] # noqa: E402 - examples/engine.py

SECONDS, PER_SECOND, STEP = 2.0, 4.0, 0.01


def replace_calls(recorder: CallRecorder) -> None:
    """What the engine calls of FlashInfer, counted and without kernels."""

    def put(owner: Any, name: str, answer: Callable[..., Any]) -> None:
        own = getattr(owner, name)
        setattr(owner, name, recorder.counted(answer, getattr(own, "__wrapped__", own)))

    for name in ("fused_add_rmsnorm", "apply_rope_pos_ids_inplace", "append_paged_kv_cache"):
        put(flashinfer, name, lambda *_: None)
    put(flashinfer, "silu_and_mul", lambda x: x[..., : x.shape[-1] // 2])
    put(flashinfer.sampling, "top_p_sampling_from_probs", lambda *_: None)
    flashinfer.get_batch_indices_positions = lambda _indptr, _lengths, nnz: (torch.zeros(nnz, dtype=torch.int32),) * 2
    for wrapper in (flashinfer.BatchPrefillWithPagedKVCacheWrapper, flashinfer.BatchDecodeWithPagedKVCacheWrapper):
        put(wrapper, "__init__", lambda *_, **__: None)
        put(wrapper, "plan", lambda *_, **__: None)
        put(wrapper, "run", lambda _self, q, _cache: torch.empty_like(q))


def replace_torch() -> None:
    @contextlib.contextmanager
    def graph(torch_graph: Any) -> Iterator[None]:
        torch_graph.capture_begin()
        yield
        torch_graph.capture_end()

    empty = dict.fromkeys(("capture_begin", "capture_end", "replay"), lambda _graph: None)
    of_cuda = {"CUDAGraph": type("CUDAGraph", (), empty), "graph": graph, "synchronize": lambda: None}
    for name, one in of_cuda.items():
        setattr(torch.cuda, name, one)
    product = {"linear": lambda x, weight: x.new_empty(*x.shape[:-1], weight.shape[0])}
    vars(torch.nn.functional).update(product)
    vars(torch).update(randn=torch.empty)


def serve(model: Any) -> None:
    """As `engine.main` does, by steps instead of by a clock."""
    scheduler, now = engine.Scheduler(), 0.0
    coming = deque(engine.arrivals(random.Random(0), PER_SECOND, SECONDS))
    while now < SECONDS:
        now += STEP
        while coming and coming[0][0] <= now:
            scheduler.add(coming.popleft()[1])
        kind, batch = scheduler.step()
        if kind == "prefill":
            model.run_prefill(batch)
        elif batch:
            size = next(size for size in engine.BATCHES if size >= len(batch))
            model.decode[size].run([one for one, _ in batch])
        scheduler.done(batch)


def main() -> None:
    random.seed(0)
    pieces.DRAWN.seed(0)
    pieces.EVERY = 3600.0  # once, at the end
    engine.DEVICE = "cpu"
    replace_torch()
    with tempfile.TemporaryDirectory() as folder:
        recorder = CallRecorder(torch, folder)
        hooks.hook_graphs(recorder)
        replace_calls(recorder)
        serve(engine.Model())
        recorder.writer.flush(ends=True)
        joined = merging.of_folder(Path(folder))
    head = replace(joined.recording.head, seconds=SECONDS)
    output = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "examples" / "traffic.jsonl"
    recording.write(output, replace(joined.recording, head=head))
    print(f"{head.calls} calls, {len(joined.recording.calls)} distinct{''.join(f'; {one}' for one in joined.faults)}")


if __name__ == "__main__":
    main()
