"""APIs as FlashInfer declares them, whose calls run on a CPU: what is timed on a GPU is called here."""

import torch
from flashinfer.api_logging import flashinfer_api
from flashinfer.trace.template import Const, Scalar, Tensor, TraceTemplate, Var


def _template(name, outputs, reference, init, **inputs):
    axes = {"rows": Var(), "width": Const()}
    return TraceTemplate(name, axes, inputs, outputs, reference=reference, init=init)


def _inputs(*, rows, width=8, device="cuda", seed=0):
    torch.manual_seed(seed)
    return {"x": torch.randn(rows, width, device=device)}


def _doubled(x):
    return 2 * x


X = Tensor(["rows", "width"])
double = _template("double", {"y": X}, _doubled, _inputs, x=X)


@flashinfer_api(trace=double)
def doubled(x):
    return 2 * x


@flashinfer_api(trace=_template("wrong", {"y": X}, _doubled, _inputs, x=X))
def doubled_wrongly(x):
    return 2.1 * x


@flashinfer_api(trace=_template("inplace", {"x": X}, _doubled, _inputs, x=X))
def doubled_in_place(x):
    x.mul_(2)


def _with_out(*, rows, width=8, device="cuda", seed=0):
    made = _inputs(rows=rows, width=width, device=device, seed=seed)
    return {**made, "out": torch.empty_like(made["x"])}


@flashinfer_api(trace=_template("out", {"out": X}, _doubled, _with_out, x=X))
def doubled_to(x, out):
    out.copy_(2 * x)


@flashinfer_api(trace=_template("out", {"out": X}, _doubled, _with_out, x=X))
def half_written(x, out):
    out[::2].copy_(2 * x[::2])


@flashinfer_api(trace=_template("unnamed", {"y": X}, _doubled, _inputs, x=X))
def doubled_under_another_name(x):
    x.mul_(2)


@flashinfer_api(trace=_template("unwritten", {"y": X}, _doubled, _inputs, x=X))
def unwritten(x):
    return torch.empty_like(x)


@flashinfer_api(trace=_template("sized", {"y": X}, _doubled, _inputs, x=X))
def doubled_with_a_size(x, width):
    return 2 * x.view(-1, width)


@flashinfer_api(trace=_template("optional", {"y": X}, _doubled, _inputs, x=X))
def doubled_with_what_may_be_none(x, groups: "Optional[int]", bias: "torch.Tensor | None"):  # noqa: F821 - as FlashInfer has it
    assert groups is bias is None
    return 2 * x


@flashinfer_api(trace=_template("refused", {"y": X}, _doubled, _inputs, x=X))
def refused(x):
    raise NotImplementedError("no kernel for this GPU\nand more of it")


@flashinfer_api(trace=_template("incomplete", {"y": X}, _doubled, _inputs, x=X))
def without_a_kernel(x):
    kernel = None
    return kernel(x)


def _planned(*, rows, width=8, device="cuda", seed=0):
    return {
        "plan": {"a_factor": 2.0, "flags": torch.ones(1)},
        "run": _inputs(rows=rows, width=width, device=device, seed=seed),
    }


class DoubleWrapper:
    plans = 0

    def __init__(self, float_workspace_buffer, backend="auto"):
        assert float_workspace_buffer.numel()
        self.backend = backend

    def plan(self, factor, flags_arr: "List[torch.Tensor]"):  # noqa: F821 - as FlashInfer annotates it
        [_] = flags_arr
        self.factor = factor
        DoubleWrapper.plans += 1

    @flashinfer_api(trace=_template("run", {"y": X}, _doubled, _planned, x=X, factor=Scalar()))
    def run(self, x, out=None):
        return torch.mul(x, self.factor, out=out)
