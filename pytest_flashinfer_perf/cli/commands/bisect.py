"""`flashinfer-perf bisect`: find the commit or the release in which cases changed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_flashinfer_perf.bisect import subjects
from pytest_flashinfer_perf.bisect.comparing import ON_HOST, SIGNS, Answers, Times
from pytest_flashinfer_perf.bisect.output import Evidence, results, step
from pytest_flashinfer_perf.bisect.places import Processes
from pytest_flashinfer_perf.bisect.search import (
    COMMAND,
    FINDINGS,
    CaseFinding,
    CaseSearch,
    Compare,
    NoDifferenceError,
    Question,
    RevisionSearch,
    SearchJournal,
    read_journal,
)
from pytest_flashinfer_perf.bisect.subjects import Subject
from pytest_flashinfer_perf.cli import judging
from pytest_flashinfer_perf.config.option import ALLOW
from pytest_flashinfer_perf.files import FileError, read_json, write_json, write_whole
from pytest_flashinfer_perf.gate.effects import Domain
from pytest_flashinfer_perf.gate.match import Reason
from pytest_flashinfer_perf.gate.pairs import PairPlan
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.printing import say, show
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.fields import FieldError
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.rows.run_file import RunError

EXAMPLE = """examples:
  flashinfer-perf bisect --releases 0.6.18 0.7.2 --find faster -- tests/attention -k 'prefill and fa2'
  flashinfer-perf bisect --repo . --good v1.0 --bad main -- test_my_kernel.py
"""
FOUND, NOT_ALL_FOUND = 0, 1
WRONG = "wrong"
ONE_CALL = "--perf-iters=1"  # enough to search for wrong answers; the user's own arguments follow and win


@dataclass(frozen=True)
class Start:
    """The arguments of a search; `points` are a resumed search's revisions, since branches may have moved since."""

    options: argparse.Namespace
    words: Sequence[str]
    for_pytest: Sequence[str]
    output: Path
    points: Sequence[str] = ()


@dataclass(frozen=True)
class Begun:
    """What `--resume` needs to know of the command that began the search."""

    words: tuple[str, ...]
    folder: str
    points: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    start = _start(arguments)
    command = processes.environment("python", start.options.python).command
    subject = subjects.subject(start.options, start.for_pytest, command, start.output, start.points)
    if start.options.dry_run:
        show(_estimate(start, subject, command))
        return FOUND
    gpu = processes.gpu(start.for_pytest)
    _write(start, subject)
    with processes.alone_on(gpu):
        trails = _searched(subject, read_journal(start.output / FINDINGS, _compare(start, subject, gpu)))
    Evidence(start.output).result(trails)
    subject.write_logs(trails, start.output)
    show(results(trails, subject.history, ON_HOST.get(start.options.find, start.options.find)))
    return FOUND if all(trail.found for trail in trails) else NOT_ALL_FOUND


def _start(arguments: Sequence[str]) -> Start:
    own, for_pytest = processes.split(arguments)
    options = parser().parse_args(own)
    if options.resume:
        if for_pytest or options != parser().parse_args([f"--resume={options.resume}"]):
            raise RunError(f"--resume takes all else from {options.resume / COMMAND}: leave out the other arguments")
        return _resumed(options.resume)
    if options.repo and not (options.good and options.bad):
        raise RunError("--repo needs both --good=REV and --bad=REV")
    output = Path("bisect") if options.dry_run else processes.folder(options.output, "bisect")
    return Start(options, arguments, for_pytest, output.resolve())


def _resumed(folder: Path) -> Start:
    try:
        begun = fields.read(Begun, read_json(folder / COMMAND), "it")
    except (FileError, FieldError) as error:
        raise RunError(f"--resume={folder}: no search was begun there: {error}") from error
    if begun.folder != str(Path.cwd()):
        raise RunError(f"--resume={folder}: it was begun in {begun.folder}, start it there")
    own, for_pytest = processes.split(begun.words)
    return Start(parser().parse_args(own), begun.words, for_pytest, folder.resolve(), begun.points)


def _write(start: Start, subject: Subject) -> None:
    begun = Begun(tuple(start.words), str(Path.cwd()), tuple(subject.points))
    write_json(start.output / COMMAND, fields.written(begun))
    write_whole(start.output / ".gitignore", "*\n")  # it may lie in the checkout, which stays as it is
    say(f"kept in {start.output}; interrupted, it goes on with: flashinfer-perf bisect --resume {start.output}")


def _compare(start: Start, subject: Subject, gpu: str | None) -> Compare:
    options, evidence = start.options, Evidence(start.output)
    rules = judging.rules(options, paired=True)
    if options.find == WRONG:
        words = [ONE_CALL, *start.for_pytest]
        return Answers(Processes(subject.places, words, start.output, gpu, rules.allowed))
    instrument = Processes(subject.places, start.for_pytest, start.output, gpu, rules.allowed)
    quantity = Domain(options.find) if options.find in ON_HOST else None
    rules = replace(rules, quantity=quantity, allowed=rules.allowed | {Reason.LIBRARY.value})
    return Times(instrument, rules, evidence.verdicts, SIGNS.get(options.find, 1), options.pairs, options.most_pairs)


def _searched(subject: Subject, record: SearchJournal) -> list[CaseSearch]:
    """Search; worktrees and environments are removed at the end, but kept if the search is interrupted."""
    subject = subject.begin()
    history = subject.history
    say(f"{counted(len(history), 'point')} from {history.title(history.good)} to {history.title(history.bad)}")
    try:
        trails = RevisionSearch(
            history, PrintedSteps(record, subject), lambda trails: say(_outlook(trails, record, subject))
        ).run()
    except NoDifferenceError:
        subject.places.remove()
        raise
    subject.places.remove()
    return trails


@dataclass(frozen=True)
class PrintedSteps:
    """Prints each comparison with its findings."""

    record: SearchJournal
    subject: Subject

    def __call__(self, question: Question) -> Mapping[str, CaseFinding]:
        found = self.record(question)
        for line in step(question, found, self.subject.history, self.record.seconds[question.number - 1]):
            say(line)
        return found


def _outlook(trails: Sequence[CaseSearch], record: SearchJournal, subject: Subject) -> str:
    steps = subjects.steps(len(subject.history))
    minutes = (steps + 1) * record.seconds[0] / 60
    cases = counted(sum(trail.searched for trail in trails), "case")
    return (
        f"{cases} to search for, in about {counted(steps, 'step')} and a verification: {minutes:.0f} min if as the ends"
    )


def _estimate(start: Start, subject: Subject, command: Sequence[str]) -> list[str]:
    cases = subjects.collected(command, start.for_pytest)
    plan = PairPlan(start.options.pairs, start.options.most_pairs)
    return list(subjects.lines(len(subject.history), cases, subject.disk, plan))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flashinfer-perf bisect",
        usage="flashinfer-perf bisect (--releases GOOD BAD | --repo PATH --good REV --bad REV) [OPTIONS] "
        "-- PYTEST_ARGS",
        description="Find the release of FlashInfer, or the commit of any repository, in which cases became slower\n"
        "(or changed as --find asks).\n"
        "Each step compares a revision with the good end, in pairs of processes, until the verdict is certain.\n"
        "Exits with 0 if the change is found for every case in which the ends differ, with 1 if only for some,\n"
        "with 2 if the ends differ in no case, or not surely, or after an error.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_points(made)
    made.add_argument(
        "--find",
        choices=(*SIGNS, *ON_HOST, WRONG),
        default="slower",
        help="The change to search for: slower or faster on the GPU, calls that take the host longer to enqueue (host) "
        "or to plan (plan), wrong answers. Default: %(default)s.",
    )
    judging.PYTHON.add_by(made.add_argument)
    judging.add_pairs(made)
    made.add_argument(
        "--dry-run", action="store_true", help="Print the number of steps, disk space and minutes, and measure nothing."
    )
    judging.add_output(made, "bisect")
    judging.add_settings(made)
    ALLOW.add_by(made.add_argument)
    made.set_defaults(perf_gate_strict=False)
    return made


def _add_points(made: argparse.ArgumentParser) -> None:
    """Options that name the releases or commits to search, and how to make them."""
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--releases", nargs=2, metavar=("GOOD", "BAD"), help="Search between two releases of flashinfer-python."
    )
    where.add_argument("--repo", type=Path, metavar="PATH", help="Search the commits of this git repository.")
    where.add_argument("--resume", type=Path, metavar="DIR", help="Continue the interrupted search in this folder.")
    made.add_argument("--good", metavar="REV", help="A commit before the change.")
    made.add_argument("--bad", metavar="REV", help="A later commit, after the change.")
    made.add_argument(
        "--build",
        metavar="CMD",
        help="Run this after each checkout, in the worktree. Commits for which it fails are skipped.",
    )
    made.add_argument(
        "--wheels", type=Path, metavar="DIR", help="Folder with FlashInfer's wheels. Default: pip's index."
    )
