"""Start a program with the recorder in it, and look after the folder that its processes write their pieces to."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import FlashinferPerfError
from pytest_flashinfer_perf.extensions.traffic import hooks, merging

HOOKS = Path(hooks.__file__).with_name("inside")
GRACE_S = 5.0  # for processes that end a little later than the one that started them


class RecordError(FlashinferPerfError):
    """Nothing was recorded; the message says why."""


def new_folder(output: Path) -> Path:
    """The folder for the pieces of a recording."""
    pieces = output.with_name(f"{output.name}.pieces").resolve()
    try:
        pieces.mkdir()
    except FileExistsError:
        raise RecordError(
            f"{pieces} is there, of a command that records now or was killed: give another -o, or read it by --from"
        ) from None
    if os.geteuid() == 0:
        pieces.chmod(0o1777)  # for processes that become another user's
    return pieces


def environment(pieces: Path) -> Mapping[str, str]:
    """The program's, with the recorder in front of its Python path."""
    path = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, hooks.FOLDER: str(pieces)}


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code of the program, which gets the signals to end that this process is sent."""
    try:
        child = subprocess.Popen(command, env=environ)  # noqa: S603 - what the user asked for
    except OSError as error:
        raise RecordError(f"{command[0]} cannot be started: {error}") from error
    passing: Any = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), lambda number, _: child.send_signal(number))
    passing[signal.SIGINT] = lambda *_: None  # a terminal sends it to both
    before = {one: signal.signal(one, handler) for one, handler in passing.items()}
    try:
        code = child.wait()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return code if code >= 0 else 128 - code


def writers(pieces: Path) -> list[int]:
    """The processes that are still there and have not ended their piece."""
    left = [piece.name.partition("-")[0] for piece in pieces.glob("*.jsonl") if not merging.is_ended(piece)]
    return sorted({int(pid) for pid in left if Path("/proc", pid).exists()})


def left(pieces: Path) -> list[int]:
    """The processes that are still there some moments later."""
    end = time.monotonic() + GRACE_S
    while (pids := writers(pieces)) and time.monotonic() < end:
        time.sleep(0.05)
    return pids
