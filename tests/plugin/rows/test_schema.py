"""The type of a row against files, JSON Schema and documents; nothing else reads rows by string keys."""

import re
from contextlib import nullcontext

import pytest
import row_documents
from documents import ROOT
from hypothesis import example, given
from hypothesis import strategies as st
from schemas import faults

from pytest_flashinfer_perf.rows import fields, row
from pytest_flashinfer_perf.rows.fields import FieldError
from pytest_flashinfer_perf.rows.parts import DECLARED
from pytest_flashinfer_perf.rows.row import PARTS

PACKAGE = ROOT / "pytest_flashinfer_perf"
SCHEMA = row_documents.schema()  # of the extensions that are there; the file has that of all
PREFILL = "--page_size 4 --batch_size 1 --s_qo 4 --s_kv 8 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16 -vv"
MOE = "--num_tokens 2 --hidden_size 16 --intermediate_size 16 --num_experts 2 --top_k 1"
CASES = (
    f"--perf-case=--routine BatchPrefillWithPagedKVCacheWrapper {PREFILL} --backends torch",
    f"--perf-case=--routine cutlass_fused_moe {MOE} --backends torch",
)
OWN = """
import torch

def test_own(perf, benchmark):
    benchmark.extra_info["mine"] = {"any": [1, 2]}
    perf.time(torch.neg, torch.ones(8), flops=8, bytes=64)

def test_plain(benchmark):
    benchmark.pedantic(int)
"""


@pytest.fixture
def written(session):
    """The records of a case with `-vv`, of a MoE, of a test's own call, and of a plain benchmark."""
    of_cases = session("--import-mode=importlib", *CASES).document["benchmarks"]
    return [*of_cases, *session(test_own=OWN).document["benchmarks"]]


def test_what_is_written_fits_the_schema_and_is_read_as_it_was(written):
    *ours, plain = written
    known = {**SCHEMA, "required": row_documents.schema()["required"]}  # without extensions less is
    assert [fault for record in ours for fault in faults(known, record["extra_info"])] == []
    assert [row.read(record, "x").extra_info() for record in ours] == [record["extra_info"] for record in ours]
    assert [row.read(record, "x").is_ours for record in written] == [True, True, True, False]
    assert row.read(ours[2], "x").facts == {"mine": {"any": [1, 2]}}
    assert row.read(plain, "x").case == plain["fullname"]


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=2))
VALUES = st.one_of(PLAIN, st.dictionaries(st.text(), PLAIN, max_size=2))


@example("flops", 2**64 + 1)
@example("rotations", 2**64 + 1)
@given(st.sampled_from(sorted(SCHEMA["properties"])), VALUES)
def test_the_reader_and_the_schema_agree_on_every_value(name, value):
    kinds = [kind for part in PARTS.values() for known, kind in fields.types_of(part).items() if known == name]
    [kind] = kinds or [DECLARED[name]]
    is_wrong = list(faults(SCHEMA["properties"][name], value))
    with pytest.raises(FieldError, match=f"x: {name}") if is_wrong else nullcontext():
        fields.value(kind, value, f"x: {name}")


KEY_OF_A_ROW = re.compile(r"""\b(row|info|extra_info|record|stats|r|first|identity)(\[|\.get\()["']""")


def test_only_the_package_of_rows_reads_them_by_string_keys():
    assert all(map(KEY_OF_A_ROW.search, ('row["median"]', 'run.row.get("case")', 'b.extra_info.get("x", 1)')))
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "rows"]
    assert [str(path) for path in paths if KEY_OF_A_ROW.search(path.read_text())] == []
