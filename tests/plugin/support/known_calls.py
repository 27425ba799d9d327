"""A module that recorded programs import: functions that FlashInfer's own decorator made, without kernels."""

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
    if scale < 0:
        raise ValueError("it does not compute")

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
def attend(q, seq_lens, block_tables=None):
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
