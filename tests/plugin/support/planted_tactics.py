"""Test files for whole sessions, whose calls take as long as the work in them says."""

HEAD = """
    import random

    import pytest
    import torch
    from flashinfer.autotuner import AutoTuner, DynamicTensorSpec, TunableRunner, TuningConfig
    from pytest_flashinfer_perf.routines.gemm.bmm import bmm_fp8
    from pytest_flashinfer_perf.spec.routine import Built
    from scripted import Scripted, install

    class Clock(Scripted):
        noise, spent = random.Random(0), 0.0

        def works(self, milliseconds):
            self.spent += milliseconds * 1e-3 * self.noise.gauss(1, 0.005)

        def _timed(self, work):
            self.spent = 0.0
            return super()._timed(work)

        def seconds_of(self, answer):
            return self.spent or super().seconds_of(answer)

    install(clock := Clock())
"""
OF_EIGHT_ROWS = """
    @pytest.mark.perf_cases(bmm_fp8, "--n 16 --k 32 --m 8")
    def test_bmm(perf, case):
        perf(case)
"""
# A product whose runner has eight tactics of known cost, and a tuner's stopwatch. Entries are kept by bucket and by
# size, as cuBLASLt's BF16 runner keeps them, or with BY_TYPE by type.
FILE = f"""{HEAD}
    import glob
    import os
    import threading
    import warnings


    # 6 is wrong, 7 raises, 8 is not listed
    MS = dict(zip(range(-1, 9), (6.0, 2.0, 2.0, 4.0, 6.0, 16.0, 8.0, 1.0, 1.0, 3.0)))
    POWERS = DynamicTensorSpec((0, 1), (0, 0), lambda most: (1, 2, most), lambda m: 1 << (m - 1).bit_length())
    ROUNDED = TuningConfig(dynamic_tensor_specs=(POWERS,))
    ENDS, HANGS, SPOILS = (int(os.environ.get(name, 99)) for name in ("ENDS", "HANGS", "SPOILS"))
    PICKS = os.environ.get("PICKS", "0").split(",")

    class CublasFp8GemmRunner(TunableRunner):
        def __init__(self, product, out, given, m):
            self.product_cache, self.out_cache, self.given_cache, self.m = product, out, given, m

        def get_cache_key_extras(self, inputs):
            return (inputs[0].dtype if "BY_TYPE" in os.environ else inputs[0].shape[0],)

        def get_valid_tactics(self, inputs, profile):
            return [0, 1, 2, 3, 4, 5, 6, 7]

        def forward(self, inputs, tactic=-1, **more):
            if tactic == 7 and self.m == 3:
                warnings.warn("the tactic failed; falling back to default tactic=-1.")
            elif tactic == 7:
                raise RuntimeError("no such kernel")
            if tactic == ENDS:
                os._exit(9)
            if tactic == HANGS:
                threading.Event().wait()
            self.product_cache()
            if tactic == SPOILS:
                self.given_cache.view(torch.uint8).bitwise_xor_(1)
            if tactic == 6:
                self.out_cache.zero_()
            clock.works(0.5 if tactic == 5 and self.m == 3 else MS[tactic])  # fast for one kind of inputs only

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
        plain, always = bmm_fp8.backends["torch"].build(p, x, how).launch, [torch.zeros(p.m, 8), None]

        def launch(x):
            runner = CublasFp8GemmRunner(lambda: plain(x), bmm_fp8.outputs(x)[0], x.a, p.m)
            asked = dict(custom_op="a_product", runners=[runner], tuning_config=ROUNDED, inputs=always)  # as some are
            runner, tactic = AutoTuner.get().choose_one(**asked)
            return runner(inputs=always, tactic=tactic)

        return Built(launch, "auto")

    @pytest.mark.perf_cases(bmm_fp8, *(f"--n 16 --k 32 --m {{m}}" for m in (3, 8)))
    def test_bmm(perf, case):
        perf(case)
"""
# A call that asks twice, as a layer of experts does: the time is the sum of what both answers cost.
TWO = f"""{HEAD}
    MS = dict(up=dict(zip((-1, 0, 1, 2), (2.5, 2.5, 0.5, 4.5))), down=dict(zip((-1, (0,), (1,)), (2.0, 0.5, 2.0))))

    class Array:
        def __init__(self, *values):
            self.values = values

        def __iter__(self):
            return iter(self.values)

    class MoERunner(TunableRunner):
        which = "up"

        def get_valid_tactics(self, inputs, profile):
            AutoTuner.get().choose_one("a part, of which nothing comes", [self], TuningConfig(), inputs)
            return [Array(*one) if isinstance(one, tuple) else one for one in MS[self.which] if one != -1]

        def forward(self, inputs, tactic=-1, **more):
            clock.works(MS[self.which][tactic])

    @bmm_fp8.backend("auto", tunes=True)
    def _planted(p, x, how):
        plain, always, runner = bmm_fp8.backends["torch"].build(p, x, how).launch, [torch.zeros(p.m, 8)], MoERunner()

        def launch(x):
            plain(x)
            for runner.which in MS:
                chosen, tactic = AutoTuner.get().choose_one("moe::" + runner.which, [runner], TuningConfig(), always)
                chosen(inputs=always, tactic=tactic)

        return Built(launch, "auto")
{OF_EIGHT_ROWS}"""
