"""An evaluator as it is written for FlashInfer-Bench: twice the product is right."""

# ruff: noqa: ARG003, PLR0917, B905

from flashinfer_bench.bench.evaluators.evaluator import Evaluator
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.runner.runner import BaselineHandle, DeviceBaseline
from flashinfer_bench.bench.utils import compute_error_stats, gen_inputs, make_eval
from flashinfer_bench.data import Correctness, EvaluationStatus


class Doubled(Evaluator):
    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == "gemm"

    @classmethod
    def build_baseline(cls, definition, workload, cfg, device, trace_set_root=None):
        inputs = [gen_inputs(definition, workload, device) for _ in range(cfg.num_trials)]
        outputs = [[2 * a @ b.T] for a, b in inputs]
        return DeviceBaseline(BaselineHandle("x"), definition, device, inputs, outputs, 0.0)

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg, log_path, device):
        seen = Correctness()
        for given, (want,) in zip(inputs, ref_outputs):
            if sol_runnable.metadata.destination_passing_style:
                got = allocate_outputs(definition, given, device)
                sol_runnable(*given, *got)
            else:
                got = normalize_result(definition, sol_runnable(*given), device)
            largest, _, exceeds, _ = compute_error_stats(got[0], want, cfg)
            seen = Correctness(max_absolute_error=largest)
            if exceeds:
                status, said = EvaluationStatus.INCORRECT_NUMERICAL, f"not the double at atol {cfg.atol}"
                return seen, make_eval(status, device, log_path, correctness=seen, extra_msg=said)
        return seen, None

    @classmethod
    def eval_performance(cls, *_, **__):
        raise AssertionError("times are measured here")
