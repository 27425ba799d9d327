"""Programs that call what `known_calls` has in all ways that a recorder has to know, and modules that they find."""

WRAPPERS = """
import random
random.seed(5)
wrapper = Wrapper(torch.empty(16, dtype=torch.uint8), kv_layout="HND")
kv = (torch.empty(9, 8).t(), None)
wrapper.plan(torch.tensor([0, 3, 7]), torch.arange(7) + 100, 8)
for _ in range(1000):
    wrapper.run(A, kv)
for length in range(1, 201):
    wrapper.plan(indptr=torch.tensor([0, 1, 1 + length]), indices=torch.arange(1 + length), heads=8)
    for _ in range(10):
        wrapper.run(A, kv, return_lse=True)
for nth in range(50):
    mm(A, A, seed=nth, name="/home/me/secret", scale=0.5)
assert random.random() == random.Random(5).random()
"""
GRAPHS = """
wrapper = Wrapper(torch.empty(16, dtype=torch.uint8))
plan = lambda length: wrapper.plan(torch.tensor([0, length]), torch.arange(length), 8)
plan(1)
graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
graph.capture_begin()
for _ in range(3):
    wrapper.run(A, A)
mm(A, A)
graph.capture_end()
other.capture_begin()
two(A)
other.capture_end()
for length in (5, 6, 7):
    plan(length)
    for _ in range(100):
        graph.replay()
[mm(A, A) for _ in range(10)]
buffer, full = torch.zeros(8, dtype=torch.int64), torch.cuda.CUDAGraph()
full.capture_begin()
attend(A, buffer[2:4], torch.zeros(2, 3, dtype=torch.int64))
for _ in range(4):
    attend(A, buffer[2:4], skip_check=True)
    attend(A, torch.zeros(2, dtype=torch.int64), torch.ones(4))
full.capture_end()
for length in range(1, 201):
    buffer[2], buffer[3] = length, 1000 + length
    full.replay()
for graph in (other, *(torch.cuda.CUDAGraph() for _ in range(20))):  # the first captures anew
    graph.capture_begin()
    two(wrapper.run(A, A))
    graph.capture_end()
    graph.replay()
[recorder] = sys.modules["pytest_flashinfer_perf.extensions.traffic.hooks"].recorders
flush()
assert len(recorder.graphs) == 3, "full, other, and the last one; the name of the first was taken"
"""
BEYOND = """
class Strange(torch.Tensor):
    @property
    def shape(self):
        raise RuntimeError("has none")

mm(A, A)
mm(A.as_subclass(Strange), A)
sys.modules["pytest_flashinfer_perf.extensions.traffic.recorder"].MOST_DISTINCT = 4
for nth in range(10):
    mm(A, A, scale=nth + 0.5)
    mm(A, A)
"""
STUCK = """
mm(A, A)
flush()
sys.modules["pytest_flashinfer_perf.extensions.traffic.pieces"].EVERY = 0.001
writer = sys.modules["pytest_flashinfer_perf.extensions.traffic.hooks"].recorders[0].writer
other = threading.Thread(target=writer.lock.acquire)  # and it does not give it back
other.start()
other.join()
os._exit(3)
"""
ODD = """
import enum
import torch._subclasses

class Kind(enum.Enum):
    TEXT, PAIR, HUGE, FINE = "a b", (1, 2), 1 << 70, "ok"

class Odd:
    def __hash__(self):
        raise ValueError

def make():
    @flashinfer_api
    def inner(q):
        pass
    return inner

make()(A)
flashinfer_api(lambda q: None)(A)
for kind in Kind:
    attend(A, a=kind)
attend(A, b=[[[[[[[[1]]]]]]]])
attend(A, **{"gr\u00f6\u00dfe": 3, "x-y": 4, "z" * 65: 5})
attend(A, torch.tensor([3, -(1 << 63), (1 << 63) - 1]))
attend(A, c=(1 << 80, float("nan"), "\\ud800", b"", 1j, Odd()))
attend(torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged))
with torch._subclasses.FakeTensorMode():
    attend(torch.empty(2))
mm(A, A)
"""
RELOADED = """
import importlib
mm(A, A)
again = importlib.reload(sys.modules["flashinfer.api_logging"]).flashinfer_api
again(lambda q: None)(A)
"""
ENDING = "mm(A, A); early(0)"
KILLED = """
mm(A, A)
written = sys.modules["pytest_flashinfer_perf.extensions.traffic.hooks"].recorders[0].writer.path
while not os.path.exists(written) or "killed.mm" not in open(written).read():
    os.sched_yield()
os.kill(os.getpid(), signal.SIGKILL)
"""
KEPT = """
from flashinfer.gemm import mm_fp4
from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper as Own, fast_decode_plan
import inspect
assert mm_fp4.has_backend_choices() and mm_fp4.is_backend_supported("cudnn")
assert callable(Own.run.fi_trace) and Own.run.__name__ == "run"
assert list(inspect.signature(Own.plan).parameters)[:3] == ["self", "indptr", "indices"]
assert hasattr(fast_decode_plan, "__wrapped__") and hasattr(Own.run, "__wrapped__")
mm(A, A)
"""
EMPTY_GRAPHS = """
import torch
nothing = lambda graph: None
torch.cuda.CUDAGraph = type("CUDAGraph", (), {"capture_begin": nothing, "capture_end": nothing, "replay": nothing})
"""
PROGRAMS = {
    "wrappers": WRAPPERS, "graphs": GRAPHS, "beyond": BEYOND, "stuck": STUCK, "odd": ODD,
    "reloaded": RELOADED, "ending": ENDING, "killed": KILLED, "kept": KEPT, "nothing": "",
}  # fmt: skip
