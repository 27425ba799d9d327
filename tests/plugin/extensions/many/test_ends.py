"""How a process has ended is known by its code and its last words."""

import fnmatch
import subprocess

import pytest

from pytest_flashinfer_perf.extensions.many import case_endings

FATAL = """Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "/a/reader.py", line 5 in read

Current thread 0x2 (most recent call first):
  File "/a/kernel.py", line 1 in launch
  File "/a/_pytest/python.py", line 187 in pytest_pyfunc_call
  File "/a/pluggy/_callers.py", line 1 in _multicall

Extension modules: numpy (total: 1)
"""


@pytest.mark.parametrize(
    ("end", "outcome", "sentence"),
    [
        ("exit 0", "exited", "its process exited with code 0: *os._exit*"),
        ("exit 3", "exited", "its process exited with code 3: *"),
        ("kill -KILL $$", "killed", "*by SIGKILL*out of memory*"),
        ("kill -TERM $$", "killed", "its process was ended by SIGTERM"),
        ("kill -40 $$", "killed", "its process was ended by signal 40"),
    ],
)
def test_a_death_without_words_is_known_by_its_code_which_stays(end, outcome, sentence):
    with subprocess.Popen(["sh", "-c", end]) as process:
        death = case_endings.of_death("", 4.0, case_endings.exit_code(process.pid))
        assert death.outcome == outcome
        assert fnmatch.fnmatch(death.sentence, sentence)
        assert case_endings.exit_code(process.pid) == process.wait() == process.returncode
    assert (
        case_endings.of_death("", 4.0, case_endings.exit_code(process.pid)).sentence
        == "its process ended without a word"
    )


@pytest.mark.parametrize(
    ("words", "outcome", "frames"),
    [
        (FATAL, "segfault", '  File "/a/kernel.py", line 1 in launch'),
        (FATAL.replace("Segmentation fault", "Aborted"), "abort", '  File "/a/kernel.py", line 1 in launch'),
        (FATAL.replace("Segmentation fault", "Bus error"), "bus-error", '  File "/a/kernel.py", line 1 in launch'),
        (
            'Timeout (0:00:04)!\nThread 0x1 (most recent call first):\n  File "a", line 1 in b\n',
            "timeout",
            '  File "a", line 1 in b',
        ),
        ("", "killed", ""),
    ],
)
def test_a_death_is_known_by_its_last_words(words, outcome, frames):
    death = case_endings.of_death(words, 4.0, None)
    assert (death.outcome, death.words) == (outcome, frames)
