"""A small model, a step of it, and runs that measured its kernels."""

from reports import benchmark, document, write

from pytest_flashinfer_perf.models.step import Step
from pytest_flashinfer_perf.runs.fields import written

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
FLAGS = ["--batch", "4", "--context", "128", "--page-size", "16"]


def rows(plan, microseconds, **changes):
    """A benchmark for each problem of the plan, that many microseconds long by the kernel's name."""
    for one in plan.planned:
        for routine, params in one.problems:
            if one.kernel.name in microseconds:
                known = {"routine": routine.name, "shape": params.slug(), "case": f"{routine.name}/{params.slug()}-fa2"}
                made = benchmark(us=microseconds[one.kernel.name], **known, **changes)
                yield {
                    **made,
                    "fullname": f"t.py::test[{known['case']}]",
                    "params": {"routine": routine.name, "backend": "fa2", **params.as_json()},
                }


PRODUCTS = {"qkv": 10.0, "attention": 20.0, "o": 5.0, "gate-up": 30.0, "down": 15.0, "lm-head": 40.0}
BETWEEN = {"rope": 1.0, "append": 1.0, "activation": 2.0, "add-norm": 3.0, "first norm": 3.0, "sampling": 7.0}
TIMES = {**PRODUCTS, **BETWEEN}


def recorded(plan, microseconds, when="2026-11-20T10:00:00+00:00", **changes):
    """A run that has the step itself."""
    made = document(*rows(plan, microseconds, **changes), when=when)
    return {**made, "flashinfer_perf": {**made["flashinfer_perf"], "step": written(plan.recorded)}}


def run_of(path, microseconds, plan):
    return write(path, document(*rows(plan, microseconds)))
