"""`flashinfer-perf bisect`: find the commit or the release in which cases changed."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import (
    commands,
    fields,
    file_io,
    formatting,
    judging,
    match,
    printing,
    processes,
    run_file,
    verdict,
    words,
)
from pytest_flashinfer_perf.api import fields as core_fields
from pytest_flashinfer_perf.api import options as core_options
from pytest_flashinfer_perf.extensions.bisect import subjects
from pytest_flashinfer_perf.extensions.bisect.comparing import ON_HOST, SIGNS, Answers, Times
from pytest_flashinfer_perf.extensions.bisect.histories import GIT_WORDS, History, PointVerdict
from pytest_flashinfer_perf.extensions.bisect.pairs import PairPlan
from pytest_flashinfer_perf.extensions.bisect.places import Processes
from pytest_flashinfer_perf.extensions.bisect.search import (
    COMMAND,
    FINDINGS,
    RESULT,
    CaseFinding,
    CaseSearch,
    Compare,
    NoDifferenceError,
    Question,
    RevisionSearch,
    SearchJournal,
    read_journal,
)
from pytest_flashinfer_perf.extensions.bisect.subjects import Commits, Subject
from pytest_flashinfer_perf.spec import flags

EXAMPLE = """examples:
  flashinfer-perf bisect --releases 0.6.18 0.7.2 --find faster -- tests/attention -k 'prefill and fa2'
  flashinfer-perf bisect --repo . --good v1.0 --bad main -- test_my_kernel.py
"""
RELEASES = "Search between two releases of flashinfer-python."
POINTS: dict[str, dict[str, Any]] = {
    "--releases": {"nargs": 2, "metavar": ("GOOD", "BAD"), "help": RELEASES},
    "--repo": {"type": Path, "metavar": "PATH", "help": "Search the commits of this git repository."},
    "--resume": {"type": Path, "metavar": "DIR", "help": "Continue the interrupted search in this folder."},
}
COMMITS = (
    ("--good", "REV", "A commit before the change."),
    ("--bad", "REV", "A later commit, after the change."),
    ("--build", "CMD", "Run this after each checkout, in the worktree. Commits for which it fails are skipped."),
)
ENDS = {PointVerdict.CHANGED: "changed", PointVerdict.UNCHANGED: "not changed", PointVerdict.SKIP: "unclear"}
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
        cases = subjects.collected(command, start.for_pytest)
        plan = PairPlan(start.options.pairs, start.options.most_pairs)
        printing.show(subjects.lines(len(subject.history), cases, subject.disk, plan))
        return FOUND
    gpu = processes.gpu(start.for_pytest)
    _write(start, subject)
    with processes.alone_on(gpu):
        trails = _searched(subject, read_journal(start.output / FINDINGS, _compare(start, subject, gpu)))
    result = [asdict(trail) for trail in trails]
    file_io.write_json(start.output / RESULT, result)
    if isinstance(subject, Commits):
        subject.write_logs(trails, start.output)
    if start.options.as_json:
        commands.show_json(result)
    else:
        printing.show(_results(trails, subject.history, ON_HOST.get(start.options.find, start.options.find)))
    return FOUND if all(trail.found for trail in trails) else NOT_ALL_FOUND


def _start(arguments: Sequence[str]) -> Start:
    own, for_pytest = processes.split(arguments)
    options = parser().parse_args(own)
    if options.resume:
        if for_pytest or options != parser().parse_args([f"--resume={options.resume}"]):
            raise run_file.RunError(
                f"--resume takes all else from {options.resume / COMMAND}: leave out the other arguments"
            )
        return _resumed(options.resume)
    if options.repo and not (options.good and options.bad):
        raise run_file.RunError("--repo needs both --good=REV and --bad=REV")
    output = Path("bisect") if options.dry_run else processes.folder(options.output, "bisect")
    return Start(options, arguments, for_pytest, output.resolve())


def _resumed(folder: Path) -> Start:
    try:
        begun = fields.read(Begun, file_io.read_json(folder / COMMAND), "it")
    except (file_io.FileError, core_fields.FieldError) as error:
        raise run_file.RunError(f"--resume={folder}: no search was begun there: {error}") from error
    if begun.folder != str(Path.cwd()):
        raise run_file.RunError(f"--resume={folder}: it was begun in {begun.folder}, start it there")
    own, for_pytest = processes.split(begun.words)
    return Start(parser().parse_args(own), begun.words, for_pytest, folder.resolve(), begun.points)


def _write(start: Start, subject: Subject) -> None:
    begun = Begun(tuple(start.words), str(Path.cwd()), tuple(subject.points))
    file_io.write_json(start.output / COMMAND, fields.written(begun))
    file_io.write_whole(start.output / ".gitignore", "*\n")  # it may lie in the checkout, which stays as it is
    printing.say(
        f"kept in {start.output}; interrupted, it goes on with: flashinfer-perf bisect --resume {start.output}"
    )


def _compare(start: Start, subject: Subject, gpu: str | None) -> Compare:
    options = start.options
    rules = judging.rules(options, paired=True)
    if options.find == WRONG:
        words = [ONE_CALL, *map(_measurable, start.for_pytest)]
        return Answers(Processes(subject.places, words, start.output, gpu, rules.allowed))
    instrument = Processes(subject.places, start.for_pytest, start.output, gpu, rules.allowed)
    quantity = options.find.removeprefix("faster-") if options.find in ON_HOST else None
    rules = replace(rules, quantity=quantity, allowed=rules.allowed | {match.Reason.LIBRARY.value})
    save = functools.partial(_save_verdicts, start.output)
    sign = SIGNS.get(options.find.partition("-")[0], 1)
    return Times(instrument, rules, save, sign, options.pairs, options.most_pairs)


def _measurable(word: str) -> str:
    """A search's finding, which pytest would only launch, as the case that it is about; other words as they are."""
    from pytest_flashinfer_perf.extensions.fuzz import findings
    from pytest_flashinfer_perf.extensions.fuzz.asked import is_finding

    path = Path(word)
    return f"--perf-case={flags.join(findings.line_of(path))}" if is_finding(path) else word


def _searched(subject: Subject, journal: SearchJournal) -> list[CaseSearch]:
    """Search; worktrees and environments are removed at the end, but kept if the search is interrupted."""
    subject = subject.begin()
    history = subject.history
    printing.say(
        f"{formatting.counted(len(history), 'point')} from {history.title(history.good)} to "
        f"{history.title(history.bad)}"
    )
    try:
        trails = RevisionSearch(history, functools.partial(_printed, journal, subject)).run()
    except NoDifferenceError:
        subject.places.remove()
        raise
    subject.places.remove()
    return trails


def _printed(journal: SearchJournal, subject: Subject, question: Question) -> Mapping[str, CaseFinding]:
    """Ask a question and print its findings; after the ends, also how long the search may take."""
    found = journal(question)
    for line in _step(question, found, subject.history, journal.entries[question.number - 1].seconds):
        printing.say(line)
    changed = sum(finding.answer is PointVerdict.CHANGED for finding in found.values())
    if question.stage == "ends" and changed:
        steps = subjects.steps(len(subject.history))
        minutes = (steps + 1) * journal.entries[0].seconds / 60
        so_many = f"{formatting.counted(changed, 'case')} to search for, in about {formatting.counted(steps, 'step')}"
        printing.say(f"{so_many} and a verification: {minutes:.0f} min if as the ends")
    return found


def parser() -> argparse.ArgumentParser:
    made = commands.parser_of(
        "bisect",
        "Find the release of FlashInfer, or the commit of any repository, in which cases became slower\n"
        "(or changed as --find asks).\n"
        "Each step compares a revision with the good end, in pairs of processes, until the verdict is certain.\n"
        "Exits with 0 if the change is found for every case in which the ends differ, with 1 if only for some,\n"
        "with 2 if the ends differ in no case, or not surely, or after an error.",
        EXAMPLE,
        usage="(--releases GOOD BAD | --repo PATH --good REV --bad REV) [OPTIONS] -- PYTEST_ARGS",
    )
    where = made.add_mutually_exclusive_group(required=True)
    for name, keywords in POINTS.items():
        where.add_argument(name, **keywords)
    for name, metavar, meaning in COMMITS:
        made.add_argument(name, metavar=metavar, help=meaning)
    wheels = "Folder with FlashInfer's wheels. Default: pip's index."
    made.add_argument("--wheels", type=Path, metavar="DIR", help=wheels)
    change = "The change to search for: slower or faster on the GPU, calls that take the host longer to enqueue (host) "
    change += "or to plan (plan) or less long (faster-host, faster-plan), wrong answers. Default: %(default)s."
    made.add_argument("--find", choices=(*SIGNS, *ON_HOST, WRONG), default="slower", help=change)
    judging.PYTHON.add_by(made.add_argument)
    judging.add_pairs(made)
    estimate = "Print the number of steps, disk space and minutes, and measure nothing."
    made.add_argument("--dry-run", action="store_true", help=estimate)
    judging.add_output(made, "bisect")
    commands.add_json(made)
    judging.add_settings(made)
    core_options.ALLOW.add_by(made.add_argument)
    made.set_defaults(perf_gate_strict=False)
    return made


# The text of a search: a line for each step and finding, and the result of each case.


def _step(question: Question, found: Mapping[str, CaseFinding], history: History, seconds: float) -> Iterator[str]:
    beside = f" beside {history.title(question.base)}" if question.stage == "verify" else ""
    yield f"{question.number:2} {question.stage}: {history.title(question.head)}{beside} ({seconds:.0f} s)"
    for case, finding in found.items():
        yield f"     {case}"
        answer = (GIT_WORDS if question.stage == "step" else ENDS)[finding.answer]
        yield from formatting.indented(f"{answer}: {finding.sentence}", 7)


def _results(trails: Iterable[CaseSearch], history: History, wanted: str) -> Iterator[str]:
    for trail in trails:
        yield ""
        yield trail.case
        yield from (line for sentence in _result(trail, history, wanted) for line in formatting.indented(sentence, 2))


def _result(trail: CaseSearch, history: History, wanted: str) -> Iterator[str]:
    if not trail.searched:
        yield f"not searched, it is unclear whether the ends differ: {trail.ends.sentence}"
        return
    if trail.verified is None:
        yield from _unverified(trail, history, wanted)
        return
    if trail.found:
        [point] = trail.suspects
        yield f"first {wanted} in {history.title(point)} ({history.origin(point)})"
    else:
        yield f"first {wanted} in one of these {len(trail.suspects)}, of which only the last could be measured:"
        yield from (history.title(point) for point in trail.suspects)
    yield f"beside what is directly before: {trail.verified.sentence}{_sure(trail.verified)}"
    yield from trail.verified.facts
    yield f"the ends: {trail.ends.sentence}"


def _unverified(trail: CaseSearch, history: History, wanted: str) -> Iterator[str]:
    yield (
        f"nothing is to blame: the ends differ ({trail.ends.sentence}), and none of these suspects is surely {wanted} "
        "than what is directly before it: it may have crept, or come and gone between measurements"
    )
    for point, finding in trail.cleared:
        yield f"{history.title(point)}: {finding.sentence}"


def _sure(finding: CaseFinding) -> str:
    return "" if finding.surely is None else f", at least {words.percent(finding.surely)} (95 % confidence)"


# The files of a search: each comparison's verdicts, and the settings with which `compare` repeats them.


def _save_verdicts(folder: Path, question: Question, judgement: verdict.Judgement) -> None:
    there = folder / question.folder
    file_io.write_whole(there / "thresholds.toml", _toml(judgement.rules))
    judging.keep(judgement, there)


def _toml(rules: verdict.Rules) -> str:
    """The thresholds as a settings file."""
    shares = ("slower", *(one.slower for one in rules.quantities))
    entries = rules.thresholds.entries
    lines = (f"{json.dumps(glob)} = {{ {_limits(entry, shares)} }}\n" for glob, entry in entries)
    return "[thresholds]\n" + "".join(lines)


def _limits(entry: Mapping[str, Any], shares: Sequence[str]) -> str:
    """The settings that decide whether a case changed, without those for absolute limits."""
    fields = [f'{name} = "{100 * entry[name]:.12f}%"' for name in shares if name in entry]
    fields += [f"floor_us = {entry['floor_us']!r}"] if "floor_us" in entry else []
    return ", ".join(fields)
