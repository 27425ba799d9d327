"""A small model, a step of it, and runs that measured its kernels."""

from reports import benchmark, document

from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.models import plan as plans
from pytest_flashinfer_perf.extensions.models.deployment import Step
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.rows.fields import written

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 640,
}


STEP = Step(batch=4, context=128, page_size=16)


def completed(folder, known=None, step=STEP):
    """The plan of TINY's step, as the FlashInfer that is installed here can measure it."""
    return plans.completed(plans.of(str(folder), step), {**all_routines(), **all_apis()} if known is None else known)


FLAGS = ["--batch", "4", "--context", "128", "--page-size", "16"]


def rows(plan, microseconds, **changes):
    """A benchmark for each problem of the plan, that many microseconds long by the kernel's name."""
    for kernel in plan.kernels:
        for problem, case in zip(kernel.problems, kernel.cases, strict=True):
            if kernel.name in microseconds:
                routine, _, shape = case.partition("/")
                known = {"routine": routine, "shape": shape, "case": f"{case}-fa2"}
                made = benchmark(us=microseconds[kernel.name], **known, **changes)
                yield {**made, "fullname": f"t.py::test[{case}-fa2]", "params": {"backend": "fa2", **problem}}


PRODUCTS = {"qkv": 10.0, "attention": 20.0, "o": 5.0, "gate-up": 30.0, "down": 15.0, "lm-head": 40.0}
BETWEEN = {"rope": 1.0, "append": 1.0, "activation": 2.0, "add-norm": 3.0, "first norm": 3.0, "sampling": 7.0}
TIMES = {**PRODUCTS, **BETWEEN}


def recorded(plan, microseconds, when="2026-11-20T10:00:00+00:00", **changes):
    """A run that has the step itself."""
    return recorded_of(plan, document(*rows(plan, microseconds, **changes), when=when))


def recorded_of(plan, made):
    return {**made, "flashinfer_perf": {**made["flashinfer_perf"], "step": written(plan)}}
