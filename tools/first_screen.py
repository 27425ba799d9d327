"""What `make bench` does without a GPU: ten cases on the CPU, the gate at work on two of them, and what to do next.

All sessions are of this process: torch is imported once.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
import time
from pathlib import Path

import pytest

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.rows import formatting

FOLDER = Path(__file__).parents[1] / "examples" / "first"
QUIETLY = ("-q", "--no-header", "-p", "no:cacheprovider", "--import-mode=importlib", "--perf-device=cpu")
PLANTED = 0.5  # of a case's time
GATED = "rmsnorm"
BEFORE, AGAIN, SLOWED = SIDES = ("before", "again", "slowed")
SESSIONS = 2  # of each side
COMPARED = ("The same code again, two cases:", "The same with 50 % more work in one of them:")
SAME, SLOWER, COULD_NOT_JUDGE = 0, 1, 2
ENOUGH_S = 12.0  # after which a busy machine is not asked again
NO_GPU = "no NVIDIA GPU here: torch alone is measured, on the CPU by its clock; times of kernels need one"
TOO_BUSY = (
    "This machine was too busy to judge all: exit code 2 says that such a comparison is no pass. Again when nothing "
    "else runs, it finds the slower case and nothing in the same code."
)


BIN = os.path.relpath(Path(sys.executable).parent)
NEXT = (
    (f"{BIN}/flashinfer-perf doctor", "what this machine can measure, and lacks"),
    (f"{BIN}/pytest test_my_kernel.py", "a kernel of your own, as in README"),
    ("make bench-smoke", "the smallest shapes of all routines"),
)


def _say(sentence: str) -> None:
    print("\n".join(formatting.wrapped(sentence, indent=0)))


class FirstScreen:
    def __init__(self, results: Path) -> None:
        self._results = results
        results.mkdir(parents=True, exist_ok=True)

    def show(self) -> int:
        _say(NO_GPU)
        failed = self._measured("first")
        if failed:
            return failed
        codes, said = self._gate()
        for what, code, lines in zip(COMPARED, codes, said, strict=True):
            is_judged = code != COULD_NOT_JUDGE
            print(f"\n{what}\n{lines if is_judged else lines.splitlines()[-1]}\nexit code {code}")
        if COULD_NOT_JUDGE in codes:
            _say(TOO_BUSY)
        self._say_what_next()
        return 0 if codes == (SAME, SLOWER) or COULD_NOT_JUDGE in codes else 1

    def _gate(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The exit codes and lines of both comparisons, of a moment in which they could be judged if there is one."""
        started = time.monotonic()
        while True:
            for nth, side in itertools.product(range(SESSIONS), SIDES):
                self._quiet(side, f"{side}-{nth}")
            codes, said = zip(*map(self._compared, (AGAIN, SLOWED)), strict=True)
            if COULD_NOT_JUDGE not in codes or time.monotonic() - started > ENOUGH_S:
                return codes, said

    def _quiet(self, side: str, name: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            failed = self._measured(name, "-k", GATED, *self._extra() if side == SLOWED else ())
        if failed:
            sys.exit(said.getvalue())

    def _measured(self, name: str, *options: str) -> int:
        words = [str(FOLDER), f"--rootdir={FOLDER}", *QUIETLY, f"--benchmark-json={self._file(name)}", *options]
        return int(pytest.main(words))

    def _extra(self) -> list[str]:
        """The option with the file of what slows the last of the gate's tests."""
        *_, row = json.loads(self._file(f"{BEFORE}-0").read_text())["benchmarks"]
        path = self._results / "plants.json"
        path.write_text(json.dumps({row["fullname"]: PLANTED * row["stats"]["median"]}))
        return [f"--perf-plant={path}"]

    def _compared(self, side: str) -> tuple[int, str]:
        before, after = ([self._file(f"{one}-{nth}") for nth in range(SESSIONS)] for one in (BEFORE, side))
        words = ["--base", *before, "--head", *after]
        config = f"--perf-config={FOLDER / 'flashinfer-perf.toml'}"
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = cli.main(["compare", *map(str, words), config])
        return code, said.getvalue().partition("\n\n")[2].strip()  # without the names of the files

    def _say_what_next(self) -> None:
        page = self._results / "first.html"
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(["report", str(self._file("first")), "-o", str(page)])
        print(f"\nthe report, for a browser: {page}\ngo on with:")
        for command, what in NEXT:
            print(f"  {command:<34}  {what}")

    def _file(self, name: str) -> Path:
        return self._results / f"{name}.json"


if __name__ == "__main__":
    raise SystemExit(FirstScreen(Path(sys.argv[1])).show())
