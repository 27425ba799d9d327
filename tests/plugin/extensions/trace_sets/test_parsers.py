"""What a data set's files and its config say; whatever else they hold is a sentence. Where arguments are placed."""

import itertools
import json
import random

import datasets
import pytest
import torch
import yaml
from datasets import DataSet, solution, workload
from flashinfer_bench.data import Definition
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mutations import as_text, mutated, said_of

from pytest_flashinfer_perf.extensions.trace_sets import BenchmarkConfig, data, shared
from pytest_flashinfer_perf.extensions.trace_sets.config import BUNDLED, LAYERED, EvaluationConfigError, option
from pytest_flashinfer_perf.machine import devices

GEMM = Definition.model_validate(datasets.GEMM)
YAML = """
use_isolated_runner: false
timeout_seconds: 300
warmup_runs: 10
iterations: 50
op_type_config:
  gemm:
    required_matched_ratio: 0.95
    extra: {a: 1, b: 1}
definition_config:
  gemm_n8_k16:
    rtol: 0.001
    extra: {b: 2}
extra: {a: 0, c: 0}
"""
LAYERS = st.fixed_dictionaries(
    {},
    optional={
        "warmup_runs": st.integers(0, 99),
        "iterations": st.integers(1, 99),
        "num_trials": st.integers(1, 9),
        "rtol": st.floats(1e-9, 1),
        "atol": st.floats(1e-9, 1),
        "required_matched_ratio": st.floats(0.1, 1),
        "extra": st.dictionaries(st.sampled_from("abc"), st.integers()),
    },
)


@given(LAYERS, LAYERS, LAYERS)
def test_a_definitions_word_wins_over_its_types_and_that_over_the_whole(whole, of_type, of_definition):
    said = {**whole, "op_type_config": {"gemm": of_type}, "definition_config": {GEMM.name: of_definition}}
    resolved = BenchmarkConfig.model_validate(said).resolve_eval_config(GEMM)
    defaults = {"warmup_runs": 10, "iterations": 50, "num_trials": 3, "rtol": 1e-2, "atol": 1e-2}
    for name in LAYERED:
        expected = next((d[name] for d in (of_definition, of_type, whole) if name in d), defaults.get(name))
        assert getattr(resolved, name) == expected
    assert resolved.extra == {**whole.get("extra", {}), **of_type.get("extra", {}), **of_definition.get("extra", {})}


def test_a_file_replaces_the_bundled_defaults_and_options_its_global_layer(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(YAML)
    made = BenchmarkConfig.from_yaml(path, iterations=200, rtol=0.5)
    assert set(made.op_type_config) == {"gemm"}
    assert not made.use_isolated_runner
    resolved = made.resolve_eval_config(GEMM)
    assert (resolved.iterations, resolved.rtol, resolved.required_matched_ratio) == (200, 0.001, 0.95)
    assert resolved.extra == {"a": 1, "b": 2, "c": 0}


def test_the_bundled_defaults():
    default = BenchmarkConfig.default(timeout_seconds=600)
    moe = default.resolve_eval_config(GEMM.model_copy(update={"op_type": "moe"}))
    assert (default.timeout_seconds, moe.required_matched_ratio, moe.extra) == (600, 0.95, {})
    assert default.use_isolated_runner
    sampling = default.resolve_eval_config(GEMM.model_copy(update={"op_type": "sampling"}))
    assert sampling.extra == BUNDLED["op_type_config"]["sampling"]["extra"]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("iterations=3", ("iterations", 3)),
        ("extra={a: 0.5}", ("extra", {"a": 0.5})),
        ("solutions=[one, two]", ("solutions", ["one", "two"])),
        ("profile_baseline=false", ("profile_baseline", False)),
    ],
)
def test_an_option_is_a_name_and_a_value_of_yaml(text, made):
    assert option(text) == made


def test_a_mutated_config_is_a_config_or_a_sentence(tmp_path):
    assert said_of(tmp_path / "config.yaml", read_config, as_text, YAML, 200)


def read_config(path):
    BenchmarkConfig.from_yaml(path).resolve_eval_config(GEMM)


FILES = {
    "definitions/gemm.json": json.dumps(datasets.GEMM),
    "solutions/right.json": json.dumps(solution(GEMM.name, "right", datasets.RIGHT[GEMM.name])),
    "workloads/gemm.jsonl": json.dumps(workload(GEMM.name, "w", {"M": 4}, A={"type": "random"})),
}


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.sampled_from(sorted(FILES)))
@example(random.Random(0), 0, "definitions/gemm.json")
def test_a_mutated_file_is_used_or_is_a_problem_of_its_own(tmp_path_factory, rand, changes, broken):
    root = tmp_path_factory.mktemp("set")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(mutated(rand, text, changes) if name == broken else text, encoding="utf-8")
    found = data.read(root)
    used = (len(found.definitions), *(sum(map(len, of.values())) for of in (found.solutions, found.workloads)))
    asked = (root / "workloads/gemm.jsonl").read_text().splitlines()
    workloads = len([line for line in asked if line.strip()])
    assert sum(used) + len(found.problems) == 2 + workloads
    assert all(problem.sentence.startswith(str(problem.file.relative_to(root))) for problem in found.problems)


def test_a_config_of_something_else_is_a_sentence(tmp_path):
    path = tmp_path / "config.yaml"
    for text in ("- 1\n", "1: 2\n", "a: &a [*a]\n", "!!python/object:os.system {}\n", yaml.dump({"iterations": "x"})):
        path.write_text(text)
        with pytest.raises(EvaluationConfigError, match=r"config\.yaml: "):
            BenchmarkConfig.from_yaml(path)


def test_a_set_without_folders_is_empty(tmp_path):
    DataSet(tmp_path / "set")
    found = data.read(tmp_path / "set")
    assert (found.definitions, found.problems) == ({}, [])


SHAPES = st.lists(st.integers(0, 5), max_size=3)
LIKES = st.tuples(SHAPES, st.sampled_from([torch.bool, torch.bfloat16, torch.int32, torch.int64, torch.float64]))


@given(st.lists(LIKES, max_size=3), st.lists(LIKES, min_size=1, max_size=3), st.integers(1, 4))
def test_arguments_in_shared_memory_do_not_overlap_and_outputs_are_in_one_piece(inputs, outputs, calls):
    contents = [[7, *(torch.zeros(shape, dtype=dtype) for shape, dtype in inputs)] for _ in range(calls)]
    made = shared.arranged(contents, outputs)
    read = [slot for one in made for slot in one.inputs[1:]]
    pieces = [*((slot.start, slot.end) for slot in read), *((one.outputs[0].start, one.end) for one in made)]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(pieces))
    assert all(slot.end <= one.end and slot.start % shared.ALIGNMENT == 0 for one in made for slot in one.outputs)
    assert [one.inputs[0] for one in made] == [7] * calls


def test_shared_memory_keeps_what_is_given_and_spoils_outputs():
    memory = shared.Memory(devices.find("cpu"))
    given = [torch.randn(3, 2), torch.tensor([True, False]), 0.5]
    (one,) = shared.arranged([given], [((2, 2), torch.float32), ((1,), torch.int32)])
    assert memory.grow(one.end)
    assert not memory.grow(one.end)
    one.fill(memory.tensor, given)
    theirs = shared.opened_file(memory.file, len(memory.tensor))
    assert all(map(torch.equal, one.values_in(theirs)[:2], given[:2]))
    assert one.values_in(theirs)[2] == 0.5
    assert one.written(theirs)[0].isnan().all()
    one.written(theirs)[0].fill_(1.0)
    assert one.written(memory.tensor)[0].eq(1.0).all()
