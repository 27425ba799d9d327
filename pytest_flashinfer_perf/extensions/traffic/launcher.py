"""Start a program with the recorder in it, and look after the folder that its processes write their pieces to."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_flashinfer_perf.api import FlashinferPerfError
from pytest_flashinfer_perf.extensions.traffic import hooks
from pytest_flashinfer_perf.extensions.traffic.journal import MappedJournal

HOOKS = Path(hooks.__file__).with_name("inside")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WAIT_S = 0.2  # for a signal, which another thread of this process may have been given
GRACE_S = 5.0  # for processes that end a little later than the one that started them


class RecordError(FlashinferPerfError):
    """Nothing was recorded; the message says why."""


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """The folder for the pieces of a recording, which this process holds."""
    pieces = output.with_name(f"{output.name}.pieces").resolve()
    try:
        pieces.mkdir()
    except FileExistsError:
        raise RecordError(f"{pieces} is there, {_owner(pieces)}") from None
    place = os.open(pieces, os.O_RDONLY)
    try:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(place, fcntl.LOCK_EX)
        _try(pieces)
        if os.geteuid() == 0:
            pieces.chmod(0o1777)  # for processes that become another user's
        yield pieces
    finally:
        os.close(place)


def _owner(pieces: Path) -> str:
    with suppress(OSError):
        place = os.open(pieces, os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "of a command that is recording now: give another -o"
        finally:
            os.close(place)
    if pids := writers(pieces):
        return f"and {still_writing(pids)}: wait for them, or give another -o"
    return "of a run that was killed: read it by --from, or remove it"


def _try(pieces: Path) -> None:
    """Raise unless files can be written there as a recorded process does."""
    try:
        tried = MappedJournal(str(pieces / "try"), b"\n")
        tried.replace_head(b"\n")
        tried.close()
        (pieces / "try").unlink()
    except OSError as error:
        with suppress(OSError):
            (pieces / "try").unlink(missing_ok=True)
            pieces.rmdir()
        raise RecordError(f"{pieces}: files cannot be written there through memory: {error.strerror}") from error


def environment(pieces: Path, *, timed: bool) -> Mapping[str, str]:
    """The program's, with the recorder in front of its Python path."""
    path = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, hooks.FOLDER: str(pieces), **({hooks.TIMED: "1"} if timed else {})}


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code of the program, which gets the signals that this process is sent.

    Those of a terminal it gets from the terminal.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    try:
        child = subprocess.Popen(  # noqa: S603 - what the user asked for
            command,
            env=environ,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),  # noqa: PLW1509 - no other thread
        )
        while (code := child.poll()) is None:
            sent = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, WAIT_S)
            if sent and sent.si_signo != signal.SIGCHLD and sent.si_code <= 0:  # by a process
                child.send_signal(sent.si_signo)
    except OSError as error:
        raise RecordError(f"{command[0]} cannot be started: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return code if code >= 0 else 128 - code


def writers(pieces: Path) -> list[int]:
    """The processes that still have a piece in their memory."""
    named = [(piece.name, piece.name.partition("-")[0]) for piece in pieces.glob("*-*.jsonl")]
    return sorted({int(pid) for name, pid in named if pid.isdecimal() and _is_written(name, pid)})


def _is_written(name: str, pid: str) -> bool:
    try:
        return name in Path("/proc", pid, "maps").read_text(errors="replace")
    except PermissionError:
        return True  # it has become another user's
    except OSError:
        return False


def left(pieces: Path) -> list[int]:
    """Those of which some moments later there still are some."""
    end = time.monotonic() + GRACE_S
    while (pids := writers(pieces)) and time.monotonic() < end:
        time.sleep(0.05)
    return pids


def still_writing(pids: Sequence[int]) -> str:
    shown = ", ".join(map(str, pids[:8])) + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")
    return f"still written to by the process{'es' * (len(pids) > 1)} {shown}"
