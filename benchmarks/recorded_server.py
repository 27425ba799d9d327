"""A server around examples/engine.py, whose outputs a recording must not change: recorded_server.py FOLDER

    python benchmarks/recorded_server.py plain
    flashinfer-perf record -o served.jsonl -- python benchmarks/recorded_server.py recorded
    python benchmarks/recorded_server.py recorded --compare plain --recording served.jsonl

It forks its worker before anything is imported, and the worker closes all descriptors that it does not know. A client
sends each request by a connection of its own, and keeps what comes back. The worker logs each step to a file that is
rotated, and every thousand steps it closes the regular files that are not its own. Requests come at steps, not at
times, and all draws are seeded, so that replies and logs are the same in each run. `--compare` ends with 1 if they
differ, or if the recording counts other calls than were made. It needs a GPU, and `--compare` none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import logging.handlers
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import engine  # type: ignore[import-not-found] # examples/engine.py

STEPS_PER_S, PER_S = 100, 20.0  # a step stands for so much of a second, in which so many requests arrive
LOG_BYTES, LOGS = 50_000, 10_000
CLOSES = 1000  # steps between two times that unknown files are closed
CONNECTIONS = 512  # at once, more than ever wait


def close_unknown(kept: set[int]) -> None:
    """As a daemon does, before it has anything of its own."""
    edges = [2, *sorted(kept), 4096]
    for low, high in itertools.pairwise(edges):
        os.closerange(low + 1, high)


def close_files(own: Path) -> None:
    """The regular files that are open here and not in this folder."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            target = entry.resolve(strict=True)
        except OSError:
            continue
        if int(entry.name) > 2 and target.is_file() and own not in target.parents:
            os.close(int(entry.name))


class Served(engine.Model):  # type: ignore[misc]
    """The engine's model, which keeps what was sampled last."""

    def sample(self, logits: Any) -> Any:
        self.sampled = super().sample(logits)
        return self.sampled


class Arrivals:
    """Requests by number with their connections; the next one is waited for, whichever came first."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener, self.changed = listener, threading.Condition()
        self.came: dict[int, tuple[Any, socket.socket]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection = self.listener.accept()[0]
            number, prompt, answer = map(int, connection.makefile("rb").readline().split())
            with self.changed:
                self.came[number] = (engine.Request(number, prompt, answer), connection)
                self.changed.notify_all()

    def take(self, number: int) -> tuple[Any, socket.socket]:
        with self.changed:
            self.changed.wait_for(lambda: number in self.came)
            return self.came.pop(number)


def log_to(folder: Path) -> logging.Logger:
    log = logging.getLogger("server")
    log.setLevel(logging.INFO)
    log.addHandler(logging.handlers.RotatingFileHandler(folder / "log", maxBytes=LOG_BYTES, backupCount=LOGS))
    return log


def serve(listener: socket.socket, folder: Path, coming: deque[tuple[float, Any]], steps: int) -> dict[str, Any]:
    """Run so many steps, and answer each request that ends with the tokens that were sampled for it."""
    import torch

    torch.manual_seed(0)
    model, scheduler, arrivals, log = Served(), engine.Scheduler(), Arrivals(listener), log_to(folder)
    connections: dict[int, socket.socket] = {}
    answers: dict[int, list[int]] = {}
    kinds: Counter[str] = Counter()
    begin = time.perf_counter()
    for step in range(steps):
        if step % CLOSES == CLOSES - 1:
            close_files(folder)
        while coming and coming[0][0] <= step / STEPS_PER_S:
            request, connection = arrivals.take(coming.popleft()[1].number)
            connections[request.number], answers[request.number] = connection, []
            scheduler.add(request)
        kind, batch = scheduler.step()
        if not batch:
            continue
        if kind == "prefill":
            model.run_prefill(batch)
        else:
            model.decode[next(size for size in engine.BATCHES if size >= len(batch))].run([one for one, _ in batch])
        tokens = model.sampled.tolist()
        scheduler.done(batch)
        kinds[kind] += 1
        log.info("%d %s %s", step, kind, tokens)
        for (request, _), token in zip(batch, tokens, strict=False):
            answers[request.number].append(token)
            if request.is_done:
                with connections.pop(request.number) as connection:
                    connection.sendall(json.dumps(answers.pop(request.number)).encode() + b"\n")
    return {"steps": kinds, "graphs": sum(one.graph is not None for one in model.decode.values()),
            "seconds": time.perf_counter() - begin, "cpu_s": resource.getrusage(resource.RUSAGE_SELF).ru_utime,
            "done": len(scheduler.finished), "preempted": scheduler.preempted}  # fmt: skip


def made(kinds: dict[str, int], graphs: int) -> dict[str, int]:
    """How often each API was called: a graph's first step is run before it is captured, and replayed after that."""
    prefill, decode = kinds["prefill"], kinds["decode"]
    forwards = prefill + decode + graphs
    return {
        "fused_add_rmsnorm": (2 * engine.LAYERS + 1) * forwards,
        "apply_rope_pos_ids_inplace": engine.LAYERS * forwards,
        "append_paged_kv_cache": engine.LAYERS * forwards,
        "silu_and_mul": engine.LAYERS * forwards,
        "top_p_sampling_from_probs": prefill + decode,
        "BatchPrefillWithPagedKVCacheWrapper.run": engine.LAYERS * prefill,
        "BatchPrefillWithPagedKVCacheWrapper.plan": prefill,
        "BatchDecodeWithPagedKVCacheWrapper.run": engine.LAYERS * (decode + graphs),
        "BatchDecodeWithPagedKVCacheWrapper.plan": decode,
    }


def ask(address: str, request: Any) -> bytes:
    """What comes back on a connection of its own, until the server closes it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(f"{request.number} {request.prompt} {request.answer}\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def run(folder: Path, steps: int, address: str) -> None:
    folder.mkdir()
    coming = deque(engine.arrivals(random.Random(0), PER_S, steps / STEPS_PER_S))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(CONNECTIONS)
    if not (worker := os.fork()):
        close_unknown({listener.fileno()})
        said = serve(listener, folder.resolve(), coming, steps)
        (folder / "said.json").write_text(json.dumps(said | {"made": made(said["steps"], said["graphs"])}))
        sys.exit()  # connections of requests that are not done are closed
    listener.close()
    with ThreadPoolExecutor(CONNECTIONS) as clients:
        asked = [(request.number, clients.submit(ask, address, request)) for _, request in coming]
    os.waitpid(worker, 0)
    replies = {number: reply.result().decode("latin-1") for number, reply in asked if not reply.exception()}
    (folder / "replies.json").write_text(json.dumps(replies))
    sys.stdout.write((folder / "said.json").read_text() + "\n")


def texts(folder: Path) -> dict[str, str]:
    logs = sorted(folder.glob("log*"), key=lambda path: -int(path.suffix[1:] or 0))
    return {"log": "".join(one.read_text("latin-1") for one in logs), "replies": (folder / "replies.json").read_text()}


def differences(folder: Path, other: Path, recording: Path | None) -> list[str]:
    ours, theirs = texts(folder), texts(other)
    found = [
        f"{name}: {len(ours[name])} and {len(theirs[name])} bytes differ" for name in ours if ours[name] != theirs[name]
    ]
    if recording:
        from pytest_flashinfer_perf.extensions.traffic import recording as recordings

        counted: Counter[str] = Counter()
        for call in recordings.read(recording).calls:
            counted[call.api] += call.count
        wanted = json.loads((folder / "said.json").read_text())["made"]
        ends = {name: sum(n for api, n in counted.items() if api.endswith(f".{name}")) for name in wanted}
        found += [f"{name}: {ends[name]:,} recorded, {n:,} made" for name, n in wanted.items() if ends[name] != n]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--compare", type=Path, metavar="FOLDER")
    parser.add_argument("--recording", type=Path)
    asked = parser.parse_args()
    if asked.compare:
        found = differences(asked.folder, asked.compare, asked.recording)
        print("\n".join(found) or "replies and logs are equal byte by byte, and all counts are exact")
        return bool(found)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    run(asked.folder, asked.steps, f"\0recorded-server-{os.getpid()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
