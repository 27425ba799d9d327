"""A small engine that calls FlashInfer as servers do: continuous batching, chunked prefill, decoding in CUDA graphs.

    python examples/engine.py --seconds 60 --seed 0
    flashinfer-perf record -o traffic.jsonl -- python examples/engine.py --seconds 60

Requests arrive at random, their prompts are prefilled in chunks beside each other, and all that have one decode a token
at a time, in a CUDA graph for each batch size. When pages run out, the newest request gives up its own and starts
again later. Weights and tokens are random: it serves no text, only the calls. `Scheduler` needs no GPU.
"""

import argparse
import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field

PAGE, PAGES, CHUNK, MOST_RUNNING = 16, 4096, 512, 64
LAYERS, HEADS, KV_HEADS, WIDTH, INTERMEDIATE, VOCABULARY = 4, 32, 8, 128, 8192, 32000
BATCHES = (1, 2, 4, 8, 16, 32, 48, 64)  # a graph for each
DEVICE = "cuda"


@dataclass
class Request:
    """Its prompt and answer as numbers of tokens; `cached` of them have their keys and values in `pages`."""

    number: int
    prompt: int
    answer: int
    cached: int = 0
    answered: int = 0
    pages: list = field(default_factory=list)

    @property
    def wanted(self):
        """Tokens to prefill: a request that was preempted has those that it had answered, too."""
        return self.prompt + self.answered

    @property
    def is_done(self):
        return self.answered >= self.answer


class Scheduler:
    """Which requests run in a step, with which pages."""

    def __init__(self, pages=PAGES, chunk=CHUNK, most=MOST_RUNNING):
        self.free, self.chunk, self.most = list(range(pages)), chunk, most
        self.waiting, self.running, self.finished, self.preempted = deque(), [], [], 0

    def add(self, request):
        if -(-(request.prompt + request.answer) // PAGE) > len(self.free) + sum(len(r.pages) for r in self.running):
            raise ValueError(f"request {request.number} is longer than the whole cache")
        self.waiting.append(request)

    def step(self):
        """Requests with the number of tokens that each gets: chunks of prompts, or one more for each that decodes."""
        while self.waiting and len(self.running) < self.most and self._fits(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        budget, prefill = self.chunk, []
        for request in list(self.running):
            left = request.wanted - request.cached
            count = min(budget, left)
            if left > 1 and count > 0 and request in self.running and self._grow(request, count):
                prefill.append((request, count))
                budget -= count
        if prefill:
            return "prefill", [one for one in prefill if one[0] in self.running]
        decoding = [request for request in list(self.running) if request in self.running and self._grow(request, 1)]
        return "decode", [(request, 1) for request in decoding if request in self.running]

    def done(self, batch):
        """What a step has computed; a request whose whole prompt is cached has its next token."""
        for request, count in batch:
            request.cached += count
            if request.cached >= request.wanted:
                request.answered += 1
            if request.is_done:
                self.running.remove(request)
                self._release(request)
                self.finished.append(request)

    @staticmethod
    def _pages_for(request, more):
        return -(-(request.cached + more) // PAGE) - len(request.pages)

    def _fits(self, request):
        """Beside what those that run still need of their prompts; answers grow later, and may preempt the newest."""
        asking = [*self.running, request]
        return sum(self._pages_for(one, one.wanted - one.cached) for one in asking) <= len(self.free)

    def _grow(self, request, count):
        """Pages for so many more tokens, if need be those of the newest request, which may be this one itself."""
        while self._pages_for(request, count) > len(self.free):
            newest = self.running.pop()
            self._release(newest)
            newest.cached = 0
            self.preempted += 1
            self.waiting.appendleft(newest)
            if newest is request:
                return False
        request.pages += [self.free.pop() for _ in range(self._pages_for(request, count))]
        return True

    def _release(self, request):
        self.free += request.pages
        request.pages = []


def arrivals(rand, per_second, seconds):
    """Requests with the second in which each comes: short questions mostly, and some long documents."""
    now, number = 0.0, 0
    while (now := now + rand.expovariate(per_second)) < seconds:
        long = rand.random() < 0.15
        prompt = rand.randint(2000, 6000) if long else rand.randint(20, 800)
        yield now, Request(number, prompt, rand.randint(16, 256))
        number += 1


class Model:
    """Layers of a small Llama with random weights; all layers share them, so that memory is the cache's."""

    def __init__(self):
        import flashinfer
        import torch

        self.torch, self.fi = torch, flashinfer
        hidden = HEADS * WIDTH

        def weights(*shape):
            return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE) / shape[-1] ** 0.5

        self.qkv, self.o = weights(hidden + 2 * KV_HEADS * WIDTH, hidden), weights(hidden, hidden)
        self.up, self.down = weights(2 * INTERMEDIATE, hidden), weights(hidden, INTERMEDIATE)
        self.head, self.table, self.norm = weights(VOCABULARY, hidden), weights(VOCABULARY, hidden), weights(hidden)
        shape = (LAYERS, PAGES + 1, 2, PAGE, KV_HEADS, WIDTH)  # the last page is of requests that only fill a batch up
        self.cache = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
        workspace = torch.zeros(256 << 20, dtype=torch.uint8, device=DEVICE)
        self.prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self.decode = {batch: Decode(self, batch) for batch in BATCHES}

    def integers(self, numbers):
        return self.torch.tensor(numbers, dtype=self.torch.int32, device=DEVICE)

    def table_of(self, requests, counts):
        """The page table once these requests have so many more tokens: indptr, pages, tokens of the last page."""
        starts, indices, lasts = [0], [], []
        for request, count in zip(requests, counts, strict=True):
            indices += request.pages
            starts.append(len(indices))
            lasts.append((request.cached + count - 1) % PAGE + 1)
        return starts, indices, lasts

    def forward(self, tokens, positions, attend, append):
        """The calls of all layers; `append` writes keys and values to a layer's cache, `attend` reads it."""
        torch, fi, functional = self.torch, self.fi, self.torch.nn.functional
        x = functional.embedding(tokens, self.table)
        residual = torch.zeros_like(x)
        for layer in range(LAYERS):
            fi.fused_add_rmsnorm(x, residual, self.norm)
            q, k, v = functional.linear(x, self.qkv).unflatten(-1, (-1, WIDTH)).split(
                [HEADS, KV_HEADS, KV_HEADS], dim=1)  # fmt: skip
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
            fi.apply_rope_pos_ids_inplace(q, k, positions)
            append(k, v, self.cache[layer])
            x = functional.linear(attend(q, self.cache[layer]).flatten(1), self.o)
            fi.fused_add_rmsnorm(x, residual, self.norm)
            x = functional.linear(fi.silu_and_mul(functional.linear(x, self.up)), self.down)
        fi.fused_add_rmsnorm(x, residual, self.norm)
        return functional.linear(x, self.head)

    def sample(self, logits):
        return self.fi.sampling.top_p_sampling_from_probs(self.torch.softmax(logits.float(), -1), 0.9)

    def run_prefill(self, batch):
        """Chunks of several prompts at once; the last token of each gives logits."""
        requests, counts = zip(*batch, strict=True)
        starts, indices, lasts = map(self.integers, self.table_of(requests, counts))
        offsets = self.integers([0, *(sum(counts[: nth + 1]) for nth in range(len(counts)))])
        sizes = (HEADS, KV_HEADS, WIDTH, PAGE)
        self.prefill.plan(offsets, starts, indices, lasts, *sizes, causal=True, q_data_type=self.torch.bfloat16)
        lengths = self.fi.get_seq_lens(starts, lasts, PAGE)
        owners, positions = self.fi.get_batch_indices_positions(offsets, lengths, sum(counts))

        def append(k, v, cache):
            self.fi.append_paged_kv_cache(k, v, owners, positions, cache, indices, starts, lasts)

        tokens = self.torch.zeros(sum(counts), dtype=self.torch.int64, device=DEVICE)
        logits = self.forward(tokens, positions, self.prefill.run, append)
        self.sample(logits[(offsets[1:] - 1).long()])


class Decode:
    """Decoding steps of one batch size: a wrapper with buffers of its own, and a graph that is captured once."""

    def __init__(self, model, batch):
        self.model, self.batch, self.graph = model, batch, None
        torch, integers = model.torch, model.integers
        self.starts, self.lasts = integers([0] * (batch + 1)), integers([1] * batch)
        self.indices = integers([0] * (PAGES + batch))
        self.positions, self.owners = integers([0] * batch), integers(list(range(batch)))
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
        workspace = torch.zeros(128 << 20, dtype=torch.uint8, device=DEVICE)
        buffers = {"paged_kv_indptr_buffer": self.starts, "paged_kv_indices_buffer": self.indices}
        self.wrapper = model.fi.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True,
            paged_kv_last_page_len_buffer=self.lasts, **buffers)  # fmt: skip

    def run(self, requests):
        """Plan, and replay the graph; requests that only fill the batch up have one token each."""
        model, torch = self.model, self.model.torch
        starts, indices, lasts = model.table_of(requests, [1] * len(requests))
        more = self.batch - len(requests)
        starts, indices = [*starts, *(starts[-1] + nth + 1 for nth in range(more))], [*indices, *[PAGES] * more]
        table = [torch.tensor(one, dtype=torch.int32) for one in (starts, indices, [*lasts, *[1] * more])]
        sizes = (HEADS, KV_HEADS, WIDTH, PAGE)
        self.wrapper.plan(*table, *sizes, q_data_type=torch.bfloat16)
        self.positions.copy_(model.integers([*(request.cached for request in requests), *[0] * more]))
        if self.graph is None:
            self._step()  # what is compiled or allocated at first
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._logits = self._step()
        self.graph.replay()
        model.sample(self._logits)

    def _step(self):
        def append(k, v, cache):
            table = (self.indices, self.starts, self.lasts)
            self.model.fi.append_paged_kv_cache(k, v, self.owners, self.positions, cache, *table)

        return self.model.forward(self.tokens, self.positions, self.wrapper.run, append)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="How long requests arrive.")
    parser.add_argument("--per-second", type=float, default=96.0, help="How many of them.")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("examples/engine.py: it needs an NVIDIA GPU, and torch sees none; its Scheduler runs without one")
    rand, scheduler = random.Random(args.seed), Scheduler()
    coming = deque(arrivals(rand, args.per_second, args.seconds))
    model, steps, start = Model(), {"prefill": 0, "decode": 0}, time.monotonic()
    while time.monotonic() - start < args.seconds:
        while coming and coming[0][0] <= time.monotonic() - start:
            scheduler.add(coming.popleft()[1])
        kind, batch = scheduler.step()
        if not batch:
            time.sleep(0.001)
            continue
        if kind == "prefill":
            model.run_prefill(batch)
        else:
            model.decode[next(size for size in BATCHES if size >= len(batch))].run([one for one, _ in batch])
        torch.cuda.synchronize()
        scheduler.done(batch)
        steps[kind] += 1
    ended, again = len(scheduler.finished), scheduler.preempted
    said = f"{steps['prefill']} prefill and {steps['decode']} decode steps, {ended} requests done, {again} preempted"
    sys.stdout.write(f"{said}\n")


if __name__ == "__main__":
    main()
