"""Cases of derived routines on a CPU: by a line, or by the name of an API and its axes."""

import shlex

import torch

from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.plugin import lines
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.routine import LaunchOptions


def cases(line):
    return lines.cases_of(shlex.split(line), all_routines())


def case(line):
    [only] = cases(f"{line} --backends torch")
    return only


def inputs(routine, params, seed=1):
    return routine.inputs(params, torch.Generator().manual_seed(seed), torch.device("cpu"))


def build(routine, params, x, backend="torch"):
    return routine.backends[backend].build(params, x, LaunchOptions(backend, cuda_graph=False))


def api_of(name):
    return all_apis()[f"flashinfer.{name}"]


def given(name, **axes):
    """The arguments of an API's call."""
    return inputs(api_of(name), api_of(name).params(**axes)).call


def built(name, **axes):
    """An API, its parameters and its inputs, once its reference is built for them."""
    params = api_of(name).params(**axes)
    x = inputs(api_of(name), params)
    build(api_of(name), params, x)
    return api_of(name), params, x
