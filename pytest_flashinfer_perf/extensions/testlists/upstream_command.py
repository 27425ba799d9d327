"""The command of `flashinfer_benchmark.py` that asks for the same case; which shapes it skips it says itself."""

from __future__ import annotations

from pytest_flashinfer_perf.extensions.testlists import upstream
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import fields_of

PROGRAM = ("python3", upstream.SCRIPT)
# Required by its parser and passed to no kernel: the latents of MLA are one head that all queries share. And what is
# the default here, as its README describes the routine, but not in its parser.
REQUIRED = {"BatchMLAPagedAttentionWrapper": ["--num_kv_heads", "1"], "mm_fp4": ["--use_nvfp4"]}


def command(case: Case) -> str | None:
    """The script's command line; None where it has no such routine, backend, flag or value."""
    name = case.routine.name
    if case.backend_name not in upstream.RUNS.get(name, ()) or _has_own_flags(case):
        return None
    has_backends = case.routine.family in upstream.DEFAULT_BACKEND
    backends = ["--backends", case.backend_name] if has_backends else []
    return flags.join([*PROGRAM, "--routine", name, *backends, *case.words_beside, *REQUIRED.get(name, [])])


def _has_own_flags(case: Case) -> bool:
    for field in fields_of(type(case.params)):
        value = getattr(case.params, field.name)
        if field.name in upstream.FLAGS_HERE_ONLY and value != field.default:
            return True
        if value in upstream.VALUES_HERE_ONLY.get(field.name, ()):
            return True
    return False
