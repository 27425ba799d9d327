"""Text of files, names and errors moves no cursor, forges no line and commands no CI system, wherever it is printed."""

import json
import re

import pytest
from declared import here
from hypothesis import given
from hypothesis import strategies as st
from made import document, row, saved

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.printing import safe, safe_lines

HOSTILE = (
    "x\n::error::pwn\r\x1b]0;title\x07\x1b[2J\x9b31m\u2028\u202e##[error]pwn ##vso[task.setvariable]a \ud800\ufffe"
)
FORGED = re.compile(r"^\s*::\w|##\[|##vso\[|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800\ufffe]", re.MULTILINE)
RISKY = st.text(st.sampled_from("::##[]vso \t\n\r\x1b\x00\x85\u2028\u202e\ud800\uffffaé"))


@given(st.text() | RISKY)
def test_no_text_makes_a_line_or_a_command_of_its_own(text):
    line = safe(text)
    assert not FORGED.search(line)
    assert len(line.splitlines()) <= 1
    assert safe_lines(text).split("\n") == [safe(one) for one in text.split("\n")]


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf", "Zl", "Zp"), exclude_characters=":#")))
def test_usual_text_stays_as_it_is(text):
    assert safe(text) == text


def hostile(**said):
    """A run in which all that can be text is hostile."""
    one = row(HOSTILE, routine=HOSTILE, shape=HOSTILE, backend=HOSTILE, device_name=HOSTILE, notes=[HOSTILE], **said)
    one |= {"fullname": f"t.py::{HOSTILE}", "name": HOSTILE}
    machine = {"driver": HOSTILE, "flashinfer": HOSTILE, "node": HOSTILE}
    left = [{"case": f"{HOSTILE} 2", "outcome": "failed", "reason": HOSTILE}]
    return one, {"unmeasured": left, "machine": machine, "commit": HOSTILE}


COMMANDS = here(
    {
        "compare --base a.json --head b.json": 1,
        "compare --base a.json --head a.json": 1,
        "compare --base a.json --head none.json": 2,
        "watch runs --markdown changes.md": 1,
        "report --markdown a.json b.json": 0,
        "merge a.json b.json -o c.json": 2,
    }
)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_print_what_a_file_says_without_obeying_it(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    one, said = hostile()
    saved(tmp_path / "a.json", one, **said)
    saved(tmp_path / "b.json", hostile(us=101)[0], **said)
    for nth in range(7):
        saved(tmp_path / "runs" / f"{nth}.json", hostile(us=101 + nth)[0], when=f"2026-11-2{nth}T12:00:00", **said)
    assert cli.main(line.split()) == COMMANDS[line]
    out, err = capsys.readouterr()
    assert "pwn" in out + err or "none" in line
    assert not FORGED.search(out + err)
    assert "Traceback" not in err


SESSION = f"""
import pytest, torch

def test_skipped(perf):
    pytest.skip({HOSTILE!r})

def test_failed(perf):
    def fail(x):
        pytest.fail({HOSTILE!r}, pytrace=False)

    perf.time(fail, torch.ones(8))

def test_broken(perf):
    def fail(x):
        raise ValueError({HOSTILE!r})

    perf.time(fail, torch.ones(8))

def test_passed(perf):
    perf.time(torch.neg, torch.ones(8))
"""


def test_a_session_prints_reasons_without_obeying_them(pytester):
    pytester.makepyfile(SESSION)
    done = pytester.runpytest("--perf-device=cpu", "--perf-iters=3", "-rA", "-v")
    done.assert_outcomes(passed=1, failed=2, skipped=1)
    assert "pwn" in done.stdout.str()
    assert not FORGED.search(done.stdout.str().encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass"))


def test_an_error_before_a_session_is_as_harmless(pytester):
    pytester.path.joinpath("own.toml").write_text(f"[tolerances]\n{json.dumps(HOSTILE[:-1])} = {{ rtl = 1 }}\n")
    pytester.path.joinpath("base.json").write_text(json.dumps({**document(), "benchmarks": [{"fullname": HOSTILE}]}))
    for option in ("--perf-config=own.toml", "--perf-gate=base.json"):
        done = pytester.runpytest(option, "--perf-device=cpu")
        assert done.ret in (2, 4)
        assert not FORGED.search(done.stderr.str() + done.stdout.str())
