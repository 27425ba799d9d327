"""How a process or a call has ended is known by its code, its last words and its error's text."""

import fnmatch
import subprocess

import pytest
import torch

from pytest_flashinfer_perf.machine import device_errors
from pytest_flashinfer_perf.session import case_endings

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


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (
            RuntimeError(
                "CUDA error: an illegal memory access was encountered\n"
                "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
            ),
            "illegal-access",
        ),
        (RuntimeError("Triton Error [CUDA]: device-side assert triggered"), "device-assert"),
        (RuntimeError("CUDA error: misaligned address"), "illegal-access"),
        (RuntimeError("CUDA error: unspecified launch failure"), "launch-failure"),
        (Exception("CUDA_ERROR_ILLEGAL_ADDRESS: a kernel"), "illegal-access"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), "out-of-memory"),
        (RuntimeError("CUDA error: out of memory"), "out-of-memory"),
        (MemoryError(), "out-of-memory"),
        (RuntimeError("CUDA error: invalid argument"), None),
        (AssertionError("2 != 3"), None),
    ],
)
def test_an_error_is_known_by_its_text(error, outcome):
    assert device_errors.name_of(error) == outcome
