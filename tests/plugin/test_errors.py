"""What cannot be used is one sentence, and the same exit code from every command."""

import importlib
import pkgutil

import pytest
from reports import benchmark, document, write

import pytest_flashinfer_perf
from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.errors import FlashinferPerfError

NOTHING = None
FAULTS = {
    "missing": NOTHING,
    "empty": "",
    "torn": '{"benchmarks": [',
    "not text": b"\xff\xfe\x00",
    "not a run": "{}",
    "a list": "[1]",
    "rows that are none": '{"flashinfer_perf": {"schema": 1}, "benchmarks": [{"name": 1}], "machine_info": {}}',
}
COMMANDS = {
    "compare its base": lambda bad, good: ["compare", "--base", bad, "--head", good],
    "compare its head": lambda bad, good: ["compare", "--base", good, "--head", bad],
    "merge": lambda bad, good: ["merge", good, bad, "-o", f"{good}.merged"],
    "report": lambda bad, good: ["report", good, bad, "-o", f"{good}.html"],
    "report as Markdown": lambda bad, _: ["report", "--markdown", bad],
    "history": lambda bad, _: ["history", bad],
}


@pytest.fixture
def refused(capsys):
    def run(words, *named):
        assert cli.main(list(map(str, words))) == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"flashinfer-perf {words[0]}: ")
        assert "Traceback" not in said.err
        for one in named:
            assert str(one) in said.err
        assert not said.out

    return run


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_used_is_named_by_every_command(fault, command, tmp_path, refused):
    bad, good, content = tmp_path / "bad.json", write(tmp_path / "good.json", document(benchmark())), FAULTS[fault]
    if isinstance(content, bytes):
        bad.write_bytes(content)
    elif content is not NOTHING:
        bad.write_text(content)
    refused(COMMANDS[command](bad, good), bad)


@pytest.mark.parametrize("command", ["compare its base", "history"])
@pytest.mark.parametrize("content", [NOTHING, "[", "[threshold]\n", '[thresholds]\n"*" = { slowr = "2%" }\n'])
def test_a_settings_file_that_cannot_be_used_is_named(content, command, tmp_path, refused):
    good, settings = write(tmp_path / "good.json", document(benchmark())), tmp_path / "mine.toml"
    if content is not NOTHING:
        settings.write_text(content)
    refused([*COMMANDS[command](good, good), "--perf-config", settings], settings)


def test_names_that_nobody_has_are_refused_alike(tmp_path, refused):
    good = write(tmp_path / "good.json", document(benchmark()))
    refused(["list", "nope"], "unknown name 'nope'")
    refused([*COMMANDS["compare its base"](good, good), "--perf-gate-allow=nope"], "unknown name 'nope'")


def test_what_cannot_be_written_is_refused_alike(tmp_path, refused):
    good, taken = write(tmp_path / "good.json", document(benchmark())), tmp_path / "good.json" / "below"
    refused(["report", good, "-o", taken], good)
    refused(["report", "--markdown", good, "-o", taken], good)


OPTIONS = (
    "--perf-config=nope.toml",
    "--perf-plant=nope.json",
    "--perf-only=nope.txt",
    "--perf-case=--routine nope",
    "--perf-backends=nope",
    "--perf-model=nope",
    "--perf-device=cuda:99",
    "--perf-trace-set=nope",
    "--perf-testlist=nope.txt",
)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_run_of_pytest_ends_with_its_own_code(option, pytester):
    pytester.makepyfile(test_mine="def test_it(perf): perf.time(sum, (1,))")
    result = pytester.runpytest(option, "test_mine.py", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *"])
    assert "INTERNALERROR" not in str(result.stdout)


def test_every_error_has_the_one_base():
    package = pytest_flashinfer_perf
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    own = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__.startswith(package.__name__)
    }
    assert len(own) > 20
    assert {kind for kind in own if not issubclass(kind, FlashinferPerfError)} == set()
