"""Solutions that cheat. None of them passes, whatever it changes in its own process, and the next one is unharmed."""

import re
import textwrap

import datasets
import pytest
from datasets import solution

DEFINITION = {
    **datasets.GEMM,
    "name": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 256}, "K": {"type": "const", "value": 320}},
}
WRONG, RIGHT = "C.zero_()", "torch.matmul(A, B.T, out=C)"
NUMERICAL, RUNTIME = "INCORRECT_NUMERICAL: ", "RUNTIME_ERROR: "
# What a busy machine says of a time, beside what the judge's clock does, and that may take the one for the other.
FORGED = "RUNTIME_ERROR: time not confirmed: |None: (impossible time|remembers answers): "
PACKAGE = "from pytest_flashinfer_perf.extensions.trace_sets import evaluators, judge, shared, solver\n"
TIMING = "from pytest_flashinfer_perf.engine import cold, instruments, timing\n"


def source(before, body, arguments="A, B, C"):
    inside = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return f"import torch\n{textwrap.dedent(before)}\n\ndef run({arguments}):\n{inside}\n"


# Accepting any answer: what compares is not where these are.
ACCEPTING = {
    "torch compares": "torch.equal = torch.allclose = lambda *a, **k: True\ntorch.isclose = lambda a, b: torch.ones(9)",
    "evaluator's class": f"{PACKAGE}evaluators.DefaultEvaluator.judged = lambda *a: None",
    "judge": f"{PACKAGE}from flashinfer_bench.data import EvaluationStatus\n"
    "judge._result = lambda *a: judge.EvaluationResult(EvaluationStatus.PASSED)",
    "statuses": "from flashinfer_bench.data import EvaluationStatus\n"
    "EvaluationStatus._value2member_map_['INCORRECT_NUMERICAL'] = EvaluationStatus.PASSED",
    "builtins": "import builtins\nbuiltins.bool = builtins.all = lambda *a: True",
    "profiler": "import sys\nsys.setprofile(lambda frame, event, arg: frame.f_locals.update(failed='', wrong=None))",
    "garbage": "import gc\ngc.disable()\ngc.get_objects = list\n[gc.freeze() for _ in range(3)]",
    "said": "print('PASSED')",
}

# Finding the answer: what is right is not in their process.
FINDING = {
    "gc": """
        import gc
        C.zero_()
        for found in gc.get_objects():
            if isinstance(found, torch.Tensor) and found.shape == C.shape and found.data_ptr() != C.data_ptr():
                C.copy_(found)
    """,
    "frames": """
        import sys
        C.zero_()
        frame = sys._getframe()
        while frame:
            for found in (frame.f_locals.get(name) for name in ("want", "expected", "baseline", "answers")):
                isinstance(found, torch.Tensor) and C.copy_(found)
            frame = frame.f_back
    """,
    "shared memory": """
        from pytest_flashinfer_perf.extensions.trace_sets.solver import Solver
        import gc
        solver = next(found for found in gc.get_objects() if isinstance(found, Solver))
        C.copy_(solver._memory.view(torch.float32)[: C.numel()].view(C.shape))
    """,
    "uninitialised memory": "C.copy_(torch.empty_like(C).nan_to_num(0.0))",
    "last answer": "C.copy_(kept.get('C', C * 0))\nkept['C'] = C.clone()",
    "written inputs": "A.zero_()\nC.zero_()",
    "half of it": "C[: len(A) // 2] = (A @ B.T)[: len(A) // 2]",
    "later by a thread": "import threading\nthreading.Timer(0.3, lambda: torch.matmul(A, B.T, out=C)).start()",
    "later by another process": """
        import os, time
        if not os.fork():
            time.sleep(0.3)
            C.copy_(A @ B.T)
            os._exit(0)
    """,
}

# Breaking out of the answers: bytes, which no one unpickles, come by a connection of their own.
CONNECTION = """import gc
from contextlib import suppress
from multiprocessing.connection import Connection

def send(what):
    for one in [found for found in gc.get_objects() if isinstance(found, Connection)]:
        with suppress(OSError):
            what(one)
"""
BREAKING = {
    "every file": (
        "",
        """
        import contextlib, os
        C.zero_()
        for file in range(3, 300):
            with contextlib.suppress(OSError):
                os.write(file, bytes(4000))
        """,
        f"{RUNTIME}|{NUMERICAL}",
    ),
    "pickles": (
        f"{CONNECTION}\nclass Owned:\n    def __reduce__(self):\n        return open, (OWNED, 'w')",
        "send(lambda one: one.send(Owned()))",
        f"{RUNTIME}its process answers nonsense",
    ),
    "too many bytes": (CONNECTION, "send(lambda one: one.send_bytes(bytes(32 << 20)))", RUNTIME),
    "answers in advance": (
        CONNECTION,
        "for _ in range(9):\n    send(lambda one: one.send_bytes(b'{}'))",
        NUMERICAL,
    ),
    "answers before the work": (
        (
            f"{PACKAGE}import time\nanswer = solver.Solver.__call__\n"
            "def early(self, request):\n    self._connection.send_bytes(b'{}')\n"
            "    answer(self, request)\n    return b'{}'\nsolver.Solver.__call__ = early"
        ),
        f"time.sleep(0.1)\n{RIGHT}",
        NUMERICAL,
    ),
    "the one that forked it": (
        "import os, signal, time",
        "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)",
        f"{RUNTIME}the process that forks others has ended",
    ),
    "its judge": (
        "import os, signal, time\nfrom pathlib import Path",
        (
            "judge = Path(f'/proc/{os.getppid()}/stat').read_text().rpartition(')')[2].split()[1]\n"
            "os.kill(int(judge), signal.SIGKILL)\ntime.sleep(60)"
        ),
        f"{RUNTIME}the process that judges died: SIGKILL",
    ),
    "leaving": ("import os", "os._exit(0)", f"{RUNTIME}its process died: exit code 0"),
    "closed files": ("import os", "os.closerange(3, 300)", RUNTIME),
    "less memory": (
        "import os",
        """
        for file in os.listdir("/proc/self/map_files"):
            if "memfd" in os.readlink(f"/proc/self/map_files/{file}"):
                os.truncate(f"/proc/self/map_files/{file}", 0)
        """,
        f"{RUNTIME}PermissionError",
    ),
    "interrupt": ("", "raise KeyboardInterrupt", RUNTIME),
}

# Forging times: the judge's clock sees what calls in a row really take.
CLOCK = "import itertools, time\nreadings = itertools.count()\ndef fast():\n    return 1e-9 * next(readings)\n"
FORGING = {
    "clock": (f"{CLOCK}time.perf_counter = fast", RIGHT),
    "clock of the instrument": (
        f"{CLOCK}{TIMING}import types\ninstruments.time = types.SimpleNamespace(perf_counter=fast)",
        RIGHT,
    ),
    "clock by ctypes": (
        (
            "import ctypes, threading, time\nat = lambda clock: ctypes.c_void_p.from_address(id(clock) + 16)\n"
            "at(time.perf_counter).value = at(time.thread_time).value"
        ),
        # So often that a thread's start, which its clock counts, is little of it.
        f"thread = threading.Thread(target=lambda: [{RIGHT} for _ in range(6)])\nthread.start()\nthread.join()",
    ),
    "instrument": (
        f"{TIMING}instruments.Wall.sample = lambda self, work, n, w: (work(), [instruments.CallTime(1e-9)] * n)[1]",
        RIGHT,
    ),
    "whole timing": (
        (
            f"{PACKAGE}from dataclasses import replace\ntimed = solver.core_timing.run\n"
            "solver.core_timing.run = lambda *a, **k: replace(timed(*a, **k), samples=(1e-9,))"
        ),
        RIGHT,
    ),
    "work outside of the time": (
        (
            f"{PACKAGE}import sys\nleft = []\n"
            "def synchronize(self):\n    if sys._getframe(1).f_code.co_name != '_once':\n"
            "        for a, b, c in left:\n            torch.matmul(a, b.T, out=c)\n        left.clear()\n"
            "solver.devices.Device.synchronize = synchronize"
        ),
        "left.append((A, B, C))",
    ),
    "work only in shared memory": (
        f"{PACKAGE}import gc\nfound = next(one for one in gc.get_objects() if isinstance(one, solver.Solver))",
        f"""
        if found._memory.untyped_storage().data_ptr() == C.untyped_storage().data_ptr():
            {RIGHT}
        """,
    ),
}

# Remembering answers: by what inputs that differ have in common.
KEYS = {
    "a number": "float(A[0, 0])",
    "address": "A.data_ptr()",
    "sums": "float(A.double().sum()), float(A.mean()), float(A.max()), float(A.min()), B.data_ptr()",
    "one of two": "bytes(A.numpy())",
}
WHILE_TIMED = """
import sys
kept = {}

def is_timed():
    frame = sys._getframe(2)
    while frame and frame.f_code.co_name != "time":
        frame = frame.f_back
    return frame is not None
"""
SEEDS = (
    "torch.manual_seed(0)\nknown = {}\nfor seed in range(40, 60):\n"
    "    g = torch.Generator().manual_seed(seed)\n"
    "    a, b = torch.randn(256, 320, generator=g), torch.randn(256, 320, generator=g)\n"
    "    known[float(a[0, 0])] = a @ b.T"
)


def memo(key):
    return f"k = {key}\nif k not in kept:\n    kept[k] = A @ B.T\nC.copy_(kept[k])"


REMEMBERING = {
    **{name: source("kept = {}", memo(key)) for name, key in KEYS.items()},
    "while timed": source(WHILE_TIMED, f"k = float(A[0, 0]) if is_timed() else object()\n{memo('k')}"),
    "answers of the seed": source(
        SEEDS, f"found = known.get(float(A[0, 0]))\n{RIGHT} if found is None else C.copy_(found)"
    ),
}
LAZY = """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        done = [(one.parts[0] @ one.parts[1].T) if isinstance(one, Lazy) else one for one in args]
        return function(*done, **(kwargs or {}))

    shape = property(lambda self: torch.Size((256, 256)))
    dtype = property(lambda self: torch.float32)
"""
OTHERS = {
    "memo by all bytes": (
        source(
            "kept = {}",
            memo("bytes(A.numpy()), bytes(B.numpy())").replace("A @ B.T", "[A @ B.T for _ in range(40)][0]"),
        ),
        FORGED,
    ),
    "nan for a time": (
        source(f"{TIMING}instruments.Wall._once = lambda self, work: (work(), float('nan'))[1]", RIGHT),
        f"{RUNTIME}its process answers nonsense",
    ),
    "a negative time": (
        source(f"{TIMING}instruments.Wall._once = lambda self, work: (work(), -1.0)[1]", RIGHT),
        "None: impossible time: none was reported",
    ),
    "more time than there was": (
        source(f"{TIMING}instruments.Wall._once = lambda self, work: (work(), 1e3)[1]", RIGHT),
        "None: impossible time: timed calls of",
    ),
    "another instrument": (
        source(
            f"{TIMING}instruments.Wall.__init__ = lambda self, name='': None\ninstruments.Wall.name = 'cupti'\n"
            "object.__setattr__(instruments.INSTRUMENTS['wall'], 'name', 'cupti')",
            RIGHT,
        ),
        "None: impossible time: by 'cupti', when wall was to measure",
    ),
    "a lazy answer": (
        source(LAZY, "lazy = torch.empty(0).as_subclass(Lazy)\nlazy.parts = A, B\nreturn lazy", "A, B"),
        FORGED,
    ),
    "a shape that lies": (
        source(f"{PACKAGE}solver.Solver._kept = lambda *a: [([-1, 256], 'torch.float32')]", "return A", "A, B"),
        "INCORRECT_SHAPE",
    ),
    "as declared": (
        source(f"{PACKAGE}solver.Solver._kept = lambda *a: [([256, 256], 'torch.float32')]", "return A", "A, B"),
        NUMERICAL,
    ),
}
ATTACKS = {
    **{f"accepting: {name}": (source(before, WRONG), NUMERICAL) for name, before in ACCEPTING.items()},
    **{f"finding: {name}": (source("kept = {}", body), NUMERICAL) for name, body in FINDING.items()},
    **{f"breaking: {name}": (source(before, body), verdict) for name, (before, body, verdict) in BREAKING.items()},
    **{f"forging: {name}": (source(before, body), FORGED) for name, (before, body) in FORGING.items()},
    **{f"remembering: {name}": (code, NUMERICAL) for name, code in REMEMBERING.items()},
    **OTHERS,
}
HONEST = source("", RIGHT)


def told(judge, name, code):
    made = solution("gemm", re.sub(r"\W", "_", name), code, returns="def run(A, B):" in code)
    result = judge(DEFINITION, made, axes={"M": 256}, evaluators=(), iterations=15, num_trials=1)
    return f"{result.status.value if result.status else None}: {result.message}\n{result.log}"


# Where it is by the judge's clock alone that an answer is found to take longer than was said.
BY_TIME = [name for name, (_, verdict) in ATTACKS.items() if verdict == FORGED]


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.more] * (one in BY_TIME)) for one in ATTACKS])
def test_no_attack_passes(judge, name, tmp_path):
    code, expected = ATTACKS[name]
    owned = tmp_path / "owned"
    seen = told(judge, name, code.replace("OWNED", repr(str(owned))))
    assert re.match(expected, seen), seen
    assert not owned.exists()


@pytest.mark.more
def test_an_honest_solution_passes_after_all_of_them(judge):
    """Or a busy machine cannot say what it takes."""
    assert re.match(f"PASSED: |{FORGED}", seen := told(judge, "honest", HONEST)), seen
