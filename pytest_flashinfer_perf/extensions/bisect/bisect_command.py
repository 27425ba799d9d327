"""`flashinfer-perf bisect`: find the commit or the release in which cases changed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pytest_flashinfer_perf.api import (
    commands,
    file_io,
    formatting,
    options,
    printing,
    processes,
    run_file,
    verdict,
    words,
)
from pytest_flashinfer_perf.extensions.bisect import histories, places
from pytest_flashinfer_perf.extensions.bisect.bisection import (
    RESULT,
    CaseFinding,
    CaseSearch,
    Compare,
    Question,
    RevisionSearch,
)
from pytest_flashinfer_perf.extensions.bisect.comparing import ON_HOST, SIGNS, Answers, Times
from pytest_flashinfer_perf.extensions.bisect.histories import GitHistory, History, PointVerdict
from pytest_flashinfer_perf.extensions.bisect.places import Installed, Places, Processes
from pytest_flashinfer_perf.extensions.compare import judging, sides
from pytest_flashinfer_perf.spec import flags

EXAMPLE = """examples:
  flashinfer-perf bisect --releases 0.6.18 0.7.2 --find faster -- tests/attention -k 'prefill and fa2'
  flashinfer-perf bisect --repo . --good v1.0 --bad main -- test_my_kernel.py
"""
RELEASES = "Search between two releases of flashinfer-python."
COMMITS = (
    ("--good", "REV", "A commit before the change."),
    ("--bad", "REV", "A later commit, after the change."),
    ("--build", "CMD", "Run this after each checkout, in the worktree. Commits for which it fails are skipped."),
)
ANSWERS = {PointVerdict.CHANGED: "changed", PointVerdict.UNCHANGED: "not changed", PointVerdict.SKIP: "unclear"}
ALL_LOCATED, NOT_ALL_LOCATED = 0, 1
WRONG = "wrong"
ONE_CALL = "--perf-iters=1"  # enough to search for wrong answers; the user's own arguments follow and win


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = parser().parse_args(own)
    if args.repo and not (args.good and args.bad):
        raise run_file.RunError("--repo needs both --good=REV and --bad=REV")
    output = sides.folder(args.output, "bisect").resolve()
    history, where = _commits(args, for_pytest, output) if args.repo else _releases(args, output)
    file_io.write_whole(output / ".gitignore", "*\n")  # it may lie in the checkout, which stays as it is
    gpu = sides.gpu(for_pytest)
    with sides.alone_on(gpu):
        trails = _searched(history, where, _compare(args, where, for_pytest, output, gpu))
    file_io.write_json(output / RESULT, [asdict(trail) for trail in trails])
    printing.show(_results(trails, history, ON_HOST.get(args.find, args.find)))
    return ALL_LOCATED if all(trail.is_located for trail in trails) else NOT_ALL_LOCATED


def _commits(args: argparse.Namespace, for_pytest: Sequence[str], output: Path) -> tuple[History, Places]:
    command = sides.environment("python", args.python).command
    trees = places.worktrees(args.repo, for_pytest, command, output, args.build)
    return GitHistory(trees.repo, *histories.between(trees.repo, args.good, args.bad)), trees


def _releases(args: argparse.Namespace, output: Path) -> tuple[History, Places]:
    command = places.from_anywhere(sides.environment("python", args.python).command)
    python = command[: -len(processes.MODULE)]
    if command != (*python, *processes.MODULE):
        raise run_file.RunError(f"--python={args.python}: with --releases it must be a virtual environment or a Python")
    wheel_paths = {} if args.wheels is None else histories.wheels(args.wheels)
    available = histories.of_index(python) if args.wheels is None else wheel_paths
    good, bad = args.releases
    history = histories.releases_between(good, bad, available, str(args.wheels or "pip's index"))
    wheels = {str(version): path.resolve() for version, path in wheel_paths.items()}
    return history, Installed(output, command, places.installer(python, args.wheels), wheels)


def _compare(
    args: argparse.Namespace, where: Places, for_pytest: Sequence[str], output: Path, gpu: str | None
) -> Compare:
    rules = judging.rules(args, paired=True)
    if args.find == WRONG:
        return Answers(Processes(where, [ONE_CALL, *map(_measurable, for_pytest)], output, gpu, rules.allowed))

    def keep(question: Question, judgement: verdict.Judgement) -> None:
        judging.keep(judgement, output / question.folder)

    instrument = Processes(where, for_pytest, output, gpu, rules.allowed)
    quantity = args.find if args.find in ON_HOST else None
    return Times(
        instrument, replace(rules, quantity=quantity), keep, SIGNS.get(args.find, 1), args.pairs, args.most_pairs
    )


def _measurable(word: str) -> str:
    """A search's finding, which pytest would only launch, as the case that it is about; other words as they are."""
    from pytest_flashinfer_perf.extensions.fuzz import findings
    from pytest_flashinfer_perf.extensions.fuzz.fuzzing import is_finding

    path = Path(word)
    return f"--perf-case={flags.join(findings.line_of(path))}" if is_finding(path) else word


def _searched(history: History, where: Places, compare: Compare) -> list[CaseSearch]:
    """Search, and say each answer; worktrees and installed releases are removed at the end."""

    def compare_and_say(question: Question) -> Mapping[str, CaseFinding]:
        start = time.monotonic()
        findings = compare(question)
        for line in _comparison_lines(question, findings, history, time.monotonic() - start):
            printing.say(line)
        return findings

    points = formatting.counted(len(history), "point")
    printing.say(f"{points} from {history.title(history.good)} to {history.title(history.bad)}")
    try:
        return RevisionSearch(history, compare_and_say).run()
    finally:
        where.remove()


def parser() -> argparse.ArgumentParser:
    result = commands.parser_of(
        "bisect",
        "Find the release of FlashInfer, or the commit of any repository, in which cases became slower (or changed as "
        "--find asks). Each comparison measures a revision beside the good end, in pairs of processes, until the "
        "verdict is certain. Exits with 0 if the change is found for every case in which the ends differ, with 1 if "
        "only for some, with 2 if the ends differ in no case, or not surely, or after an error.",
        EXAMPLE,
        usage="(--releases GOOD BAD | --repo PATH --good REV --bad REV) [OPTIONS] -- PYTEST_ARGS",
    )
    where = result.add_mutually_exclusive_group(required=True)
    where.add_argument("--releases", nargs=2, metavar=("GOOD", "BAD"), help=RELEASES)
    where.add_argument("--repo", type=Path, metavar="PATH", help="Search the commits of this git repository.")
    for name, metavar, meaning in COMMITS:
        result.add_argument(name, metavar=metavar, help=meaning)
    wheels = "Folder with FlashInfer's wheels. Default: pip's index."
    result.add_argument("--wheels", type=Path, metavar="DIR", help=wheels)
    change = "The change to search for: slower or faster on the GPU, calls that take the host longer to enqueue (host) "
    change += "or to plan (plan), wrong answers. Default: %(default)s."
    result.add_argument("--find", choices=(*SIGNS, *ON_HOST, WRONG), default="slower", help=change)
    judging.PYTHON.add_by(result.add_argument)
    judging.add_pairs(result)
    judging.add_output(result, "bisect")
    judging.add_settings(result)
    options.ALLOW.add_by(result.add_argument)
    result.set_defaults(perf_gate_strict=False)
    return result


# The text of a search: a line for each comparison and finding, and the result of each case.


def _comparison_lines(
    question: Question, findings: Mapping[str, CaseFinding], history: History, seconds: float
) -> Iterator[str]:
    beside = f" beside {history.title(question.base)}" if question.stage == "verify" else ""
    yield f"{question.number:2} {question.stage}: {history.title(question.head)}{beside} ({seconds:.0f} s)"
    for case, finding in findings.items():
        yield f"     {case}"
        yield from formatting.indented(f"{ANSWERS[finding.answer]}: {finding.sentence}", 7)


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
    if trail.is_located:
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
