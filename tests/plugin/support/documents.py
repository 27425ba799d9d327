"""The project's documents, their blocks and their commands."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.cli.commands import all_commands

ROOT = Path(__file__).parents[3]
DOCS, EVIDENCE, EXAMPLES = (ROOT / name for name in ("docs", "evidence", "examples"))
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")),
    *sorted(DOCS.rglob("*.md")),
]
RECORDS = sorted(EVIDENCE.glob("*.md"))
QUICK = ("--perf-iters=3", "--perf-device=cpu", "-p", "no:cacheprovider")
OF_EXAMPLES = re.findall(r'"--(perf-[a-z-]+)"', (EXAMPLES / "extension/flashinfer_perf_energy.py").read_text())
PYTEST_OPTIONS = {
    *OF_EXAMPLES,
    "collect-only",
    "import-mode",
    "hypothesis-profile",
}  # of no plugin that tests are run with


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands_of(page):
    """The lines of a page's shell blocks as words, with what a line's end continues."""
    shown = re.findall(r"^\$ ((?:.*\\\n)*.*)", "".join(blocks(page, "console")), re.MULTILINE)
    text = "\n".join([*(block for language in ("sh", "bash") for block in blocks(page, language)), *shown])
    lines = [part for line in text.replace("\\\n", " ").splitlines() for part in line.split(" && ")]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def each(found_in, pages=PAGES):
    """A parameter for each page that has something to test, so that no test passes for want of it."""
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages if found_in(page)]


def verify(words, config):
    """Programs, options, extras and files that a command names are there."""
    while words and re.match(r"[A-Za-z_]+=", words[0]):
        words = words[1:]
    if words:
        program = words[0].removeprefix(".venv/bin/")
        assert program in VERIFY, words
        VERIFY[program](words[1:], config)


def _verify_profiled(words, config):
    verify(words[words.index("pytest") :], config)


def _verify_python(words, config):
    if words[:2] == ["-m", "pytest"]:
        _verify_options_of_pytest(words[2:], config)
    else:
        assert words[0] == "-c" or (ROOT / words[0]).exists(), words


def _verify_make(words, _config):
    assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(), words


def _verify_file(name):
    return lambda _words, _config: (ROOT / name).read_text()


def _verify_options_of_pytest(words, config):
    for word in words:
        name = word.partition("=")[0].removeprefix("--")
        if word.startswith("--") and name not in PYTEST_OPTIONS:
            assert hasattr(config.option, name.replace("-", "_")), word
        if word.startswith("tests/") and "/test_my_" not in word:  # a reader's own
            assert (ROOT / word).exists(), word


def _verify_subcommand(words, config):
    name, (*own, _), of_pytest = words[0], [*words[1:], "--"], []
    if name == "bench":
        return _verify_options_of_pytest(own, config)
    assert name in (*cli.OF_PYTEST, *all_commands()), words
    if "--" in own:
        at = own.index("--")
        own, of_pytest = own[:at], own[at + 1 :]
    if name != "run":  # which takes flags of upstream's
        explained = help_of(name)
        assert all(word.partition("=")[0] in explained for word in own if word.startswith("--")), words
    return None if name == "record" else _verify_options_of_pytest(of_pytest, config)  # it starts any program


def _verify_extras(words, _config):
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in re.findall(r"\[(\w+)\]", " ".join(words)):
        assert f"\n{extra} = [" in declared, words


def help_of(*words):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert ended.value.code == 0
    return shown.getvalue()


VERIFY = {
    **dict.fromkeys(("ncu", "nsys", "srun"), _verify_profiled),
    "pytest": _verify_options_of_pytest,
    "python": _verify_python,
    "flashinfer-perf": _verify_subcommand,
    "make": _verify_make,
    "pip": _verify_extras,
    "pre-commit": _verify_file(".pre-commit-config.yaml"),
    ".ci/run": _verify_file(".ci/run"),
    "jq": lambda _words, _config: None,  # another project's
}
