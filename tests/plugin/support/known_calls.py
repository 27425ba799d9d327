"""Functions that FlashInfer's own decorator made, without kernels, and programs that call them, each in a fork.

One process imports torch, and runs `first`. Then each program is the text of a module of its name in a fork, in a
folder of its name, and finds `CALLS` in it; of two texts the first one runs before these. `NAME.status` is what
`waitpid` says of it, and `NAME/error` has its traceback. One that hangs is ended by SIGALRM, and says where it was.
"""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.traffic import recording

CALLS = """
import functools, importlib.util, sys, types
import torch
if "flashinfer" not in sys.modules:  # its decorator alone: the whole takes seconds to import
    package = types.ModuleType("flashinfer")
    package.__path__, package.__version__ = importlib.util.find_spec("flashinfer").submodule_search_locations, "0.7.2"
    sys.modules["flashinfer"] = package
from flashinfer.api_logging import flashinfer_api

@flashinfer_api
def mm(a, b, out=None, scale=1.0, seed=0, name="auto"):
    pass

@flashinfer_api()
def two(a):
    mm(a, a)

def checks(function):
    @functools.wraps(function)
    def checked(*args, skip_check=False, **kwargs):
        return function(*args, **kwargs)
    return checked

@flashinfer_api
@checks
def attend(q, seq_lens=None, block_tables=None, **others):
    pass

class Wrapper:
    @flashinfer_api
    def __init__(self, workspace, kv_layout="NHD"):
        pass

    @flashinfer_api
    def plan(self, indptr, indices, heads):
        self._backend = "fa2"

    @flashinfer_api
    def run(self, q, kv, *args, return_lse=False):
        return mm(q, q)

A = torch.empty(4, 8, dtype=torch.bfloat16)
"""
SERVER = """
import contextlib, ctypes, errno, faulthandler, fcntl, json, multiprocessing, os, resource, signal, socket
import subprocess, sys, threading, traceback, types, torch
calls, first, programs = json.load(open("programs.json"))

def flush():  # what the recorder does every half second
    sys.modules["pytest_flashinfer_perf.extensions.traffic.hooks"].recorders[0].writer.flush()

def note(name, data):
    os.write(os.open(name, os.O_WRONLY | os.O_CREAT), data)

known = dict(globals())
exec(first, known)
for name, text in programs.items():
    os.mkdir(name)
    if (pid := os.fork()) == 0:
        os.chdir(name)
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(120)
        try:
            own = sys.modules[name] = types.ModuleType(name)
            own.__dict__.update(known, __name__=name)
            for part in (text[0], calls, text[1]) if isinstance(text, list) else (calls, text):
                exec(part, own.__dict__)
            os._exit(0)
        except BaseException:
            note("error", traceback.format_exc().encode())
            os._exit(1)
    note(f"{name}.status", str(os.waitpid(pid, 0)[1]).encode())
"""


@dataclass(frozen=True)
class Ran:
    """The folder of programs, the exit code of all together, what was said, and the recording."""

    folder: Path
    code: int
    said: str

    @property
    def recording(self):
        return recording.read(self.folder / "t.jsonl")

    def status(self, name):
        error = self.folder / name / "error"
        assert not error.exists(), error.read_text()
        return int((self.folder / f"{name}.status").read_text())

    def calls(self, name):
        """Of this program, by the names of functions."""
        known = [call for call in self.recording.calls if call.api.startswith(f"{name}.")]
        return [(call.api.removeprefix(f"{name}."), call) for call in known]

    def counts(self, name):
        total = {}
        for function, call in self.calls(name):
            total[function] = total.get(function, 0) + call.count
        return total


def prepared(folder, programs, first=""):
    """The command that runs them in this folder."""
    (folder / "programs.json").write_text(json.dumps([CALLS, first, programs]))
    (folder / "server.py").write_text(SERVER)
    return [sys.executable, "server.py"]


def recorded(folder, programs, *words, first=""):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = cli.main(["record", "-o", "t.jsonl", *words, "--", *prepared(folder, programs, first)])
    return Ran(folder, code, said.getvalue())
