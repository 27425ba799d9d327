"""The command of `flashinfer_benchmark.py` that measures the same case, if it has one."""

from __future__ import annotations

from pytest_flashinfer_perf.flashinfer_benchmark import upstream, upstream_limits
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import fields_of

PROGRAM = ("python3", upstream.SCRIPT)
# Required by its parser and passed to no kernel: the latents of MLA are one head that all queries share. And what is
# the default here, as its README describes the routine, but not in its parser.
REQUIRED = {"BatchMLAPagedAttentionWrapper": ["--num_kv_heads", "1"], "mm_fp4": ["--use_nvfp4"]}


def command(case: Case) -> str | None:
    return None if refusal(case) else flags.join([*PROGRAM, *_words(case)])


def refusal(case: Case) -> str:
    """Why upstream's script cannot run it; nothing where it can."""
    name, backend = case.routine.name, case.backend_name
    if name not in upstream.RUNS:
        return f"{upstream.SCRIPT} has no routine {name}"
    if backend not in upstream.RUNS[name]:
        return f"{upstream.SCRIPT} does not run {name} by {backend}"
    for field in fields_of(type(case.params)):
        value = getattr(case.params, field.name)
        if field.name in upstream.FLAGS_HERE_ONLY and value != field.default:
            return f"{upstream.SCRIPT} has no flag --{field.name}"
        if value in upstream.VALUES_HERE_ONLY.get(field.name, ()):
            return f"{upstream.SCRIPT} does not take --{field.name} {value}"
    return "" if upstream_limits.runs(name, backend, case.params) else f"{upstream.SCRIPT} skips {backend} for it"


def _words(case: Case) -> list[str]:
    backends = ["--backends", case.backend_name] if case.routine.family in upstream.DEFAULT_BACKEND else []
    return ["--routine", case.routine.name, *backends, *case.words_beside, *REQUIRED.get(case.routine.name, [])]
