"""A test file for whole sessions: a product whose runner has eight tactics of known cost, and a tuner's stopwatch."""

FILE = """
    import glob
    import os
    import time

    import pytest
    import torch
    from flashinfer.autotuner import AutoTuner, TunableRunner, TuningConfig
    from pytest_flashinfer_perf.routines.gemm.bmm import bmm_fp8
    from pytest_flashinfer_perf.spec.routine import Built

    MS = {-1: 6.0, 0: 2.0, 1: 2.0, 2: 4.0, 3: 6.0, 4: 16.0, 5: 8.0, 6: 1.0, 7: 1.0}  # 6 is wrong, 7 raises
    CRASHES = int(os.environ.get("CRASHES", 99))
    PICKS = os.environ.get("PICKS", "0").split(",")

    class CublasFp8GemmRunner(TunableRunner):
        def __init__(self, product, out, m):
            self.product_cache, self.out_cache, self.m = product, out, m

        def get_valid_tactics(self, inputs, profile):
            return [0, 1, 2, 3, 4, 5, 6, 7]

        def forward(self, inputs, tactic=-1, **more):
            if tactic == 7:
                raise RuntimeError("no such kernel")
            if tactic == CRASHES:
                os.abort()
            fast = tactic == 5 and self.m == 4  # for one kind of inputs only
            end = time.perf_counter() + (0.5 if fast else MS[tactic]) * 1e-3
            self.product_cache()
            if tactic == 6:
                self.out_cache.zero_()
            while time.perf_counter() < end:
                pass

    def stopwatch(self, runner, inputs, tactic, *a, **k):
        if tactic in (6, 7):
            raise RuntimeError("the tuner sees it fail")
        nth = len(glob.glob("out/tune-*.log"))
        wanted = int(PICKS[(nth - 1) % len(PICKS)])
        return 1.0 if tactic == wanted else 2.0

    AutoTuner._profile_single_kernel = stopwatch
    torch.cuda.is_current_stream_capturing = lambda: False

    @bmm_fp8.backend("auto", tunes=True)
    def _planted(p, x, how):
        plain, always = bmm_fp8.backends["torch"].build(p, x, how).launch, [torch.zeros(p.m, 8)]

        def launch(x):
            runner = CublasFp8GemmRunner(lambda: plain(x), bmm_fp8.outputs(x)[0], p.m)
            runner, tactic = AutoTuner.get().choose_one("a_product", [runner], TuningConfig(), always)
            return runner(inputs=always, tactic=tactic)

        return Built(launch, "auto")

    @pytest.mark.perf_cases(bmm_fp8, *(f"--n 16 --k 32 --m {m}" for m in (4, 8)))
    def test_bmm(perf, case):
        perf(case)
"""
# A call that asks twice, as a layer of experts does: the time is the sum of what both answers cost.
TWO = """
    import time

    import pytest
    import torch
    from flashinfer.autotuner import AutoTuner, TunableRunner, TuningConfig
    from pytest_flashinfer_perf.routines.gemm.bmm import bmm_fp8
    from pytest_flashinfer_perf.spec.routine import Built

    MS = {"up": {-1: 2.5, 0: 2.5, 1: 0.5, 2: 4.5}, "down": {-1: 2.0, 0: 0.5, 1: 2.0}}

    class MoERunner(TunableRunner):
        which = "up"

        def get_valid_tactics(self, inputs, profile):
            return [tactic for tactic in MS[self.which] if tactic != -1]

        def forward(self, inputs, tactic=-1, **more):
            end = time.perf_counter() + MS[self.which][tactic] * 1e-3
            while time.perf_counter() < end:
                pass

    @bmm_fp8.backend("auto", tunes=True)
    def _planted(p, x, how):
        plain, always, runner = bmm_fp8.backends["torch"].build(p, x, how).launch, [torch.zeros(p.m, 8)], MoERunner()

        def launch(x):
            plain(x)
            for runner.which in MS:
                chosen, tactic = AutoTuner.get().choose_one(f"moe::{runner.which}", [runner], TuningConfig(), always)
                chosen(inputs=always, tactic=tactic)

        return Built(launch, "auto")

    @pytest.mark.perf_cases(bmm_fp8, "--n 16 --k 32 --m 8")
    def test_bmm(perf, case):
        perf(case)
"""
# No tuner: `auto` stands for one of two backends, and takes the slower one.
HEURISTIC = """
    import time

    import pytest
    from pytest_flashinfer_perf.routines.gemm.bmm import bmm_fp8
    from pytest_flashinfer_perf.spec.routine import Built

    def planted(name, milliseconds):
        @bmm_fp8.backend(name)
        def _planted(p, x, how):
            plain = bmm_fp8.backends["torch"].build(p, x, how).launch

            def launch(x):
                end = time.perf_counter() + milliseconds * 1e-3
                plain(x)
                while time.perf_counter() < end:
                    pass

            return Built(launch, name)

    for name, milliseconds in {"auto": 8.0, "cublas": 2.0, "cudnn": 8.0}.items():
        planted(name, milliseconds)

    @pytest.mark.perf_cases(bmm_fp8, "--n 16 --k 32 --m 8")
    def test_bmm(perf, case):
        perf(case)
"""
