"""Facts, figures, names and links of the documents are those of the code and of the evidence."""

import ast
import inspect
import itertools
import json
import math
import re
import subprocess
import sys
from dataclasses import fields
from importlib import metadata

import pytest
from documents import DOCS, EVIDENCE, PAGES, QUICK, README, RECORDS, ROOT, blocks, each

import pytest_flashinfer_perf as package
from pytest_flashinfer_perf import Measurement, Measuring
from pytest_flashinfer_perf.gate import confirmation, effects, noise, student
from pytest_flashinfer_perf.kernel_timing import clocks, cold, stopping
from pytest_flashinfer_perf.kernel_timing.run import Timing
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.measurement import one_case
from pytest_flashinfer_perf.plugin.fixture import Perf
from pytest_flashinfer_perf.plugin.options import MARKERS
from pytest_flashinfer_perf.report import markdown, story
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.attention import vllm_decode
from pytest_flashinfer_perf.spec import case, flags

PACKAGE = ROOT / "pytest_flashinfer_perf"
PREFILL = "--page_size 4 --batch_size 1 --s_qo 4 --s_kv 8 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16 -vv"
MOE = "--num_tokens 2 --hidden_size 16 --intermediate_size 16 --num_experts 2 --top_k 1"
CASES = (
    f"--routine BatchPrefillWithPagedKVCacheWrapper {PREFILL} --backends torch",
    f"--routine cutlass_fused_moe {MOE} --backends torch",
    "--api flashinfer.activation.silu_and_mul --num_tokens 2 --hidden_size 16 --backends torch",
)
DECODE_FP8 = (
    "--routine BatchDecodeWithPagedKVCacheWrapper --backends cudnn --page_size 16 --batch_size 1 --s_kv 1024 "
    "--num_qo_heads 8 --num_kv_heads 1 --head_dim_qk 128 --head_dim_vo 128 --q_dtype fp8_e4m3 --kv_dtype fp8_e4m3"
)


def links_of(page):
    found = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    return [(target, section) for target, _, section in found if not target.startswith("https://")]


@pytest.mark.parametrize("page", each(links_of, [*PAGES, *RECORDS]))
def test_links_lead_somewhere(page):
    for target, section in links_of(page):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not section or section in sections(found), f"{target}#{section}"


def sections(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def files_named_in(page):
    """Those with a folder before their name, from the repository's root or the package's."""
    return re.findall(r"`(\w+/[\w./-]+\.(?:py|md|txt|toml|yml))`", page.read_text())


@pytest.mark.parametrize("page", each(files_named_in, [*PAGES, *RECORDS]))
def test_files_that_the_documents_name_are_there(page):
    for name in files_named_in(page):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


def test_every_page_and_every_record_can_be_reached_from_the_readme():
    reached, waiting = set(), [README]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        targets = {(page.parent / target).resolve() for target, _ in links_of(page) if target.endswith(".md")}
        waiting.extend(targets - reached - {*waiting})
    assert {*PAGES, *RECORDS} - reached == set()


def test_the_index_of_the_evidence_names_every_file():
    index = (EVIDENCE / "README.md").read_text()
    assert [path.name for path in EVIDENCE.iterdir() if path.name != "README.md" and path.name not in index] == []


def test_each_record_begins_with_what_was_run_when_and_with_which_flashinfer():
    """The date may stand in the index alone."""
    index = dict(re.findall(r"^\| \[([\w.-]+)\].*\| ([^|]+) \|$", (EVIDENCE / "README.md").read_text(), re.MULTILINE))
    for page in RECORDS:
        text = page.read_text()
        assert re.search(r"`[^`]*(pytest|flashinfer-perf|python|ncu|--perf)\b|not in the repository", text), page.name
        assert re.search(r"\b0\.\d+\.\d+|No GPU", text), page.name
        assert re.search(r"20\d\d-\d\d-\d\d", text.partition("\n## ")[0] + index.get(page.name, "")), page.name


def test_every_field_of_a_row_is_documented(pytester):
    arguments = ["--import-mode=importlib", "--benchmark-json=run.json", *QUICK]
    pytester.runpytest(*(f"--perf-case={case}" for case in CASES), *arguments).assert_outcomes(passed=len(CASES))
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    written = {name for row in rows for name in row["extra_info"]}
    first_columns = re.findall(r"^\|([^|]+)\|", (DOCS / "row.md").read_text(), re.MULTILINE)
    documented = {name for column in first_columns for name in re.findall(r"`(\w+)`", column)}
    assert documented == written


def test_the_architecture_names_the_rooms_that_are():
    text = (DOCS / "architecture.md").read_text()
    names = {path.name for path in PACKAGE.rglob("*.py") if "routines" not in path.parts} - {"__init__.py"}
    assert {name for name in names if name not in text} == set()
    for name in re.findall(r"\b[a-z_]+\.py\b", text):
        assert list(PACKAGE.rglob(name)) or list((ROOT / "tests").rglob(name)), name


def test_the_steps_of_a_case_are_functions_of_the_modules_that_the_architecture_names():
    [steps] = re.findall(
        r"^## The steps of one case\n(.*?)^## ", (DOCS / "architecture.md").read_text(), re.DOTALL | re.MULTILINE
    )
    found = re.findall(r"\| `([\w/]+\.py)` \| `(\w+)` \|$", steps, re.MULTILINE)
    assert len(found) > 20
    for module, function in found:
        assert re.search(rf"^ *def {function}\(", (PACKAGE / module).read_text(), re.MULTILINE), f"{module}: {function}"


def too_long(page):
    """Lines of more than 120 characters, cells of more than 25 words, sentences (to a . ! ? : or ;) of more than 30."""
    text = page.read_text()
    yield from (line for line in text.splitlines() if len(line) > 120 and not line.startswith("|"))
    lines = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    cells = [cell for line in lines if line.startswith("|") for cell in re.split(r"(?<!\\)\|", line)]
    yield from (cell for cell in cells if len(cell.split()) > 25)
    prose = "\n".join("" if line.startswith(("|", "#")) else line for line in lines)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", prose)
    sentences = [sentence for one in paragraphs for sentence in re.split(r"(?<=[.!?:;])\s", " ".join(one.split()))]
    yield from (sentence for sentence in sentences if len(sentence.split()) > 30)


@pytest.mark.parametrize("page", each(lambda page: page.name not in {"options.md", "CHANGELOG.md"}))
def test_lines_cells_and_sentences_are_short(page):
    """The cells of options.md are what --help says."""
    assert list(too_long(page)) == []


def test_the_support_matrix_is_what_the_library_and_the_evidence_say():
    installed = metadata.version("flashinfer-python")
    if f"with FlashInfer {installed} installed" not in (DOCS / "support-matrix.md").read_text():
        pytest.skip(f"the matrix is of another FlashInfer than {installed}, which declares other backends")
    verify_generated("support-matrix.md", "support_matrix.py")


def test_the_page_of_options_is_what_is_declared():
    verify_generated("options.md", "options_page.py")


def verify_generated(page, script):
    """In a process of its own: a script may import all of FlashInfer."""
    program = [sys.executable, ROOT / "tools" / script]
    now = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert now == (DOCS / page).read_text(), f"out of date: python tools/{script} > docs/{page}"


def percent(share, digits=0):
    return f"{100 * share:.{digits}f} %"


def tie(kind):
    """The largest difference that is none between two rows without placements."""
    beyond = student.t_quantile(effects.RISK, noise.ASSUMED_DF)
    return math.expm1(beyond * noise.ASSUMED[kind] * math.sqrt(effects.PAIR))


def constants():
    """Sentences of the documents that state what the code has."""
    memory, other, wall = (noise.ASSUMED[kind] for kind in ("memory", "compute", "wall"))
    assert noise.ASSUMED["cycles"] == memory
    assert {noise.ASSUMED[kind] for kind in ("short", "unknown")} == {other}
    assumed = f"[{percent(memory)} of memory-bound times and of cycles, {percent(other)} of other times on a GPU, "
    yield "report.md", f"{assumed}{percent(wall)} of the host's clock](gate-method.md#noise)"
    ties = (
        f"{percent(tie('memory'), 1)} apart in memory-bound times or in cycles, {percent(tie('compute'), 1)} in other"
    )
    yield "report.md", f"{ties} times on a GPU, {percent(tie('wall'))} on a CPU"
    yield "gate-method.md", f"exceeds: {percent(memory)} for memory-bound times and cycles, {percent(other)} for others"
    unseen = {kind: percent(share, 2).replace("0 %", " %") for kind, share in noise.UNSEEN.items()}
    yield "gate-method.md", f"| times of memory-bound and of short kernels | {unseen['memory']} |"
    yield "gate-method.md", f"| cycles | {unseen['cycles']} | | other times, whose clock moves | {unseen['compute']} |"
    yield "gate-method.md", f"in rows that do not split them | {percent(noise.UNSEEN['gaps'])} |"
    launched, replayed = (percent(noise.UNSEEN[f"gaps of {what}"]) for what in ("launches", "graphs"))
    yield "gate-method.md", f"that the host launches one by one | {launched} |"
    yield "gate-method.md", f"between the kernels of a CUDA graph | {replayed} |"
    of_calls = noise.OF_CALLS * math.sqrt(math.pi / 2)
    yield "gate-method.md", f"not known | {unseen['unknown']}, and {of_calls:.1f} of what their calls scatter by |"
    yield "gate-method.md", f"gaps between queued kernels | {percent(noise.QUEUED_GAPS)} |"
    of_gaps, of_kernels = percent(noise.QUEUED_GAPS), percent(noise.ASSUMED["stamps"])
    stamps = f"{of_gaps} of the gaps between queued kernels, {1e6 * noise.STAMPS_DIFFER_S:g} us, and {of_kernels} of"
    yield "gate-method.md", f"{stamps} the kernels"
    yield "gate-method.md", f"each of them shows at least {percent(confirmation.ALIKE)} of the change"
    assert (clocks.CALLS, clocks.MOST_CALLS, round(1e6 * clocks.SHORT_S / clocks.MOST_CALLS)) == (10, 30, 33)
    yield "gate-method.md", f"| the host's clock | {percent(noise.UNSEEN['wall'])} |"
    precise = f"gaps left out, is below {percent(stopping.FINE, 1)} or {1e9 * stopping.TICK_S:.0f} ns"
    yield "measurement.md", f"{precise} (CUPTI ticks in 32), by the host's clock {percent(stopping.PRECISION['wall'])};"
    yield "measurement.md", f"would take more than {cold.MOST_COPIES} copies or half of the free memory"
    assert (cold.MEMORY_SHARE, cold.CACHE_FACTOR, stopping.PLACEMENTS, stopping.CALLS) == (0.5, 5, 5, 10)
    small = f"{one_case.STAND_IN_BYTES >> 20} MiB and {one_case.STAND_IN_FLOPS / 1e9:.0f} GFLOP"
    yield "formats.md", f"`torch` stands in where there is no GPU, in cases of up to {small}."
    yield "attention.md", f"A cache has the original's {vllm_decode.POOL_TOKENS:,} tokens at most."


@pytest.mark.parametrize(("page", "sentence"), list(constants()), ids=itertools.count())
def test_what_a_page_says_of_a_constant_is_the_codes(page, sentence):
    assert sentence in " ".join((DOCS / page).read_text().split())


# What README says in figures, and the command that makes each of them: it is named beside it, or in what it links to.
FIGURES = {
    "within 2 %": ("evidence/parity-h200-0.6.18.md", "benchmarks/parity.py"),
    "0 of 168 comparisons": ("evidence/placements-h200.md", "benchmarks/noise_evidence.py"),
    "0 of 60": ("evidence/placements-h100.md", "benchmarks/noise_evidence.py"),
    "1,595 of 1,600": ("evidence/placements-h200.md", "benchmarks/longer_cases.py"),
    "one run on an H200": ("evidence/report-h200.md", "benchmarks/report_cases.txt"),
    "3 % of extra work": ("evidence/gate-h200.md", "benchmarks/gate_evidence.py"),
}


@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_of_the_readme_names_the_command_that_makes_it(figure):
    record, command = FIGURES[figure]
    text = README.read_text()
    assert figure in " ".join(text.split())
    assert record in text
    assert f"{command}" in (ROOT / record).read_text()


@pytest.fixture(scope="module")
def api():
    """What docs/api.md declares, by its name, as the syntax trees of the declarations."""
    declared = [node for block in blocks(DOCS / "api.md", "python") for node in ast.parse(block).body]
    return {node.name: node for node in declared}


def test_the_api_page_has_every_public_name(api):
    headings = re.findall(r"^### (\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(package.__all__)
    assert set(api) == {*package.__all__, "Perf"} - {"Measurement"}
    assert set(re.findall(r"`(\w+)`", markers_of_the_api_page())) == {re.match(r"\w+", marker)[0] for marker in MARKERS}


def markers_of_the_api_page():
    [text] = re.findall(r"^## Markers\n\n(.*?):", (DOCS / "api.md").read_text(), re.MULTILINE | re.DOTALL)
    return text


@pytest.mark.parametrize("name", ["measure", "check_answer", "strategies_for"])
def test_the_api_page_has_the_parameters_and_defaults_of_a_function(name, api):
    assert declared_parameters(api[name]) == parameters(getattr(package, name))


def test_the_api_page_has_what_the_fixture_takes(api):
    methods = {node.name: node for node in api["Perf"].body}
    public = {name for name, _ in inspect.getmembers(Perf, inspect.isfunction) if not name.startswith("_")}
    assert set(methods) <= {*public, "__call__"}
    for name, node in methods.items():
        assert declared_parameters(node) == parameters(getattr(Perf, name))


def parameters(function):
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind.name, p.default) for p in found]


def declared_parameters(node):
    made = {}
    without_types = ast.FunctionDef(node.name, node.args, node.body, [], None, None)
    module = ast.fix_missing_locations(ast.Module([without_types], []))
    exec(compile(module, "api.md", "exec"), made)
    return parameters(made[node.name])


def test_the_api_page_has_the_fields_of_measuring_and_of_measurement(api):
    written = {node.targets[0].id: ast.literal_eval(node.value) for node in api["Measuring"].body}
    assert written == {f.name: f.default for f in fields(Measuring)}
    [table] = re.findall(r"^### Measurement\n(.*?)^### ", (DOCS / "api.md").read_text(), re.DOTALL | re.MULTILINE)
    first, *_ = zip(*re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE), strict=True)
    public = {name for kind in (Measurement, Timing) for name in dir(kind) if not name.startswith("_")}
    known = public | {f.name for kind in (Measurement, Timing) for f in fields(kind)}
    assert {name for cell in first for name in re.findall(r"`(\w+)`", cell)} <= known


def tables(text):
    """The rows of a page's tables that have a time in a column."""
    return {line for line in text.splitlines() if re.match(r"\|.*\| [\d.]+ (us|ms|s)( \(fastest\))? \|", line)}


def test_the_numbers_of_the_readme_are_those_of_recorded_runs():
    recorded = markdown.lines(story.read([EVIDENCE / "h200-run.json"]))
    known = {
        *"\n".join(recorded).replace("\\_", "_").splitlines(),
        *(EVIDENCE / "gate-h200.md").read_text().splitlines(),
    }
    shown = tables(README.read_text())
    assert len(shown) == 4
    assert shown <= known


def test_the_error_rates_of_the_readme_are_those_of_the_record():
    record = (EVIDENCE / "placements-h200.md").read_text()
    [judged] = re.findall(r"0 of (\d+) comparisons", " ".join(README.read_text().split()))
    assert int(judged) == sum(map(int, re.findall(r"^\| pairs of set .*\*\*0 of (\d+)\*\* \|$", record, re.MULTILINE)))
    [(found, of)] = re.findall(r"(\d,\d+) of (\d,\d+)", " ".join(README.read_text().split()))
    assert f"| {of} | **{found}** |" in record


def test_the_sentences_of_the_readme_are_those_of_the_code(hopper):
    [skips] = blocks(README, "text")
    capability.flashinfer_import_error()  # imports it: what it warns of then would be an error here
    [fp8] = case.parse(flags.split(DECODE_FP8), all_routines()).cases()
    limits = list(fp8.backend.limits(fp8.params, fp8.backend_name, hopper))
    needed = capability.compute_capability("trtllm-gen", *capability.HARDWARE["trtllm-gen"])(hopper)
    assert skips.splitlines() == [needed, *limits]


def test_messages_of_the_page_of_trouble_are_those_of_the_code():
    sources = [*PACKAGE.rglob("*.py"), ROOT / "Makefile"]
    code = "\n".join(path.read_text() for path in sources).replace("\\n", " ")
    page = (DOCS / "trouble.md").read_text().partition("## What can be measured here")[0]
    cells = re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 30
    for message in messages:
        for part in filter(None, (part.strip(" ,?") for part in message.split("..."))):
            assert part in code.replace("{{", "{").replace("}}", "}"), message
