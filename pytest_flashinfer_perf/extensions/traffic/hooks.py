"""Where a recorded program calls FlashInfer: its decorator, and torch's graphs.

`inside/sitecustomize.py` starts this in each process that imports FlashInfer. It imports Python's own modules alone.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from pytest_flashinfer_perf.extensions.traffic.graphs import MARK, Graph
from pytest_flashinfer_perf.extensions.traffic.recorder import CallRecorder, Function

FOLDER = "FLASHINFER_PERF_RECORD"  # where pieces are written

recorders: list[CallRecorder] = []  # of this process: one, once FlashInfer is imported


def hook_module(module: Any, leaving: list[Callable[..., None]]) -> None:
    """Hook one of the two modules that sitecustomize.py waits for, which has just been imported, or once more.

    What is in `leaving` is called before the process ends, or becomes another program.
    """
    if module.__name__ == "flashinfer.api_logging":
        if not recorders:
            recorders.append(recorder := CallRecorder(module.torch, os.environ[FOLDER]))
            hook_graphs(recorder)
            leaving.append(functools.partial(recorder.writer.flush, ends=True))
        module.flashinfer_api = decorating(recorders[0], module.flashinfer_api)
    elif recorders and hasattr(module, "fast_decode_plan"):  # SGLang plans by it, and FlashInfer does not decorate it
        module.fast_decode_plan = recorders[0].counted(module.fast_decode_plan, module.fast_decode_plan)


def decorating(recorder: CallRecorder, own: Function) -> Function:
    """FlashInfer's decorator, of which the program gets counted functions, whether it has arguments or none."""

    @functools.wraps(own)
    def flashinfer_api(func: Any = None, **options: Any) -> Any:
        if func is None:
            return lambda function: flashinfer_api(function, **options)
        decorated = own(func, **options)
        return recorder.counted(decorated, func) if inspect.isfunction(func) else decorated

    return flashinfer_api


def hook_graphs(recorder: CallRecorder) -> None:
    """Know of captures and replays from the methods of torch's class, as FlashInfer's own dumps do."""
    graphs = recorder.torch.cuda.CUDAGraph
    begin, end, replay = graphs.capture_begin, graphs.capture_end, graphs.replay

    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        with recorder.lock:
            recorder.capturing += 1
            recorder.here.graph = Graph(graph)
            recorder.graphs.append(recorder.here.graph)
        try:
            return begin(graph, *args, **kwargs)
        except BaseException:
            ended()
            raise

    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(graph, *args, **kwargs)
        finally:
            ended()

    def ended() -> None:
        with recorder.lock:
            recorder.here.graph, recorder.capturing = None, max(0, recorder.capturing - 1)

    def replayed(graph: Any, *args: Any, **kwargs: Any) -> Any:
        answer = replay(graph, *args, **kwargs)
        if (counted_graph := getattr(graph, MARK, None)) is not None:
            recorder.replayed(counted_graph)
        return answer

    graphs.capture_begin, graphs.capture_end, graphs.replay = capture_begin, capture_end, replayed
