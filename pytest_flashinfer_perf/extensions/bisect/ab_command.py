"""`flashinfer-perf ab`: measure two environments or commits in turns on one GPU, until each verdict is certain."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_flashinfer_perf.api import Run, commands, options, printing, processes, run_file, verdict
from pytest_flashinfer_perf.extensions.bisect import histories, places
from pytest_flashinfer_perf.extensions.bisect.pairs import PairSchedule
from pytest_flashinfer_perf.extensions.compare import judging, sides

EXAMPLE = """examples:
  flashinfer-perf ab --base venv-0.6.18 --head 'env PYTHONPATH=/src python3' -- tests -k 'decode and fa3'
  flashinfer-perf ab --repo . --base main -- test_my_kernel.py
"""


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = parser().parse_args(own)
    if args.repo is None and (args.head is None or args.build):
        raise run_file.RunError("without --repo it needs --head, and has nothing to build")
    rules = judging.rules(args, paired=True)
    gpu = sides.gpu(for_pytest)
    with _environments(args, for_pytest, rules) as (base, head, output):
        session = PairedRuns(base, head, for_pytest, output, gpu, args.budget)
        with sides.alone_on(gpu):
            judgement = PairSchedule(args.pairs, args.most_pairs).follow(session.pair, rules, session.more)
    refusals = (*judgement.refusals, *session.failures("base"))
    judgement = replace(judgement, refusals=refusals, failures=session.failures("head"))
    judging.keep(judgement, output)
    code = judging.publish(judgement, args)
    printing.say(session.summary)
    return code


@contextmanager
def _environments(
    args: argparse.Namespace, for_pytest: Sequence[str], rules: verdict.Rules
) -> Iterator[tuple[processes.Environment, processes.Environment, Path]]:
    """Both environments, complete, and the folder of the comparison; worktrees of commits are gone in the end."""
    if args.repo is None:
        environments = sides.environment("base", args.base), sides.environment("head", args.head)
        for where in environments:
            sides.verify_complete(where, rules.allowed)
        yield *environments, sides.folder(args.output, "ab")
        return
    output = sides.folder(args.output, "ab").resolve()  # each commit is measured in a folder of its own
    command = sides.environment("python", args.python).command
    trees = places.worktrees(args.repo, for_pytest, command, output, args.build)
    base = histories.commit(trees.repo, "base", args.base)
    head = histories.commit(trees.repo, "head", args.head or "HEAD")
    try:
        environments = trees.prepared("base", base), trees.prepared("head", head)
        for where in environments:
            sides.verify_complete(where, rules.allowed)
        yield *environments, output
    finally:
        trees.remove()


@dataclass
class PairedRuns:
    """The processes so far of both environments, and how long their pairs took."""

    base: processes.Environment
    head: processes.Environment
    arguments: Sequence[str]
    output: Path
    gpu: str | None
    budget: float | None
    done: list[tuple[str, processes.Done]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @functools.cached_property
    def pair(self) -> sides.Pairs[str]:
        return sides.Pairs((self.base.name, self.head.name), self._measured)

    def _measured(self, side: str, nth: int, wanted: frozenset[str] | None) -> Run:
        where = self.base if side == self.base.name else self.head
        only = None
        if wanted is not None:  # the tests of these cases, by their ids in the first run of this environment
            first = next(done.run for name, done in self.done if name == side)
            only = [row.fullname for row in first.rows if row.case in wanted]
        stem = self.output / f"pair-{nth + 1:02}-{side}"
        done = sides.measured(where, self.arguments, stem, only, f"pair {nth + 1}, {side}")
        sides.verify(done.run, self.gpu)
        self.done.append((side, done))
        return done.run

    def more(self) -> bool:
        """Whether another pair, as long as the longest one so far, would end within the budget."""
        return self.budget is None or self._seconds + max(self.pair.seconds) <= self.budget

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def failures(self, side: str) -> tuple[str, ...]:
        failed = (done for name, done in self.done if name == side and done.failed)
        return tuple(f"{side}: tests failed, see {done.log}" for done in failed)

    @property
    def summary(self) -> str:
        stopped = "" if self.more() else f"; one more would not fit into --budget={self.budget:g}"
        return f"pairs: {len(self.pair.seconds)}, in {self._seconds:.0f} s, results and logs in {self.output}{stopped}"


def parser() -> argparse.ArgumentParser:
    result = commands.parser_of(
        "ab",
        "Measure two environments alternately on one GPU. An environment (CMD) is the folder of a virtual "
        "environment, a Python, or a command that takes pytest's arguments; with --repo a commit. Each case is "
        "measured in pairs "
        "until its verdict is certain. Exits with 0 if no slowdown is found, with 1 if a case is slower or wrong, with "
        "2 if the comparison is incomplete.",
        EXAMPLE,
        usage="(--base CMD --head CMD | --repo PATH --base REV) [OPTIONS] -- PYTEST_ARGS",
    )
    base, head = (
        "The environment, or the commit, to compare with.",
        "The new one, judged against --base. A commit: HEAD.",
    )
    result.add_argument("--base", required=True, metavar="CMD", help=base)
    result.add_argument("--head", metavar="CMD", help=head)
    repo = "Measure commits of this git repository: their own tests, in worktrees that precede the installed packages."
    result.add_argument("--repo", type=Path, metavar="PATH", help=repo)
    result.add_argument("--build", metavar="CMD", help="Run this first in each worktree.")
    judging.PYTHON.add_by(result.add_argument)
    judging.add_pairs(result)
    budget = "Stop after about this many seconds. Default: no limit."
    result.add_argument("--budget", type=options.SECONDS, metavar="SECONDS", help=budget)
    judging.add_output(result, "ab")
    judging.add_options(result)
    return result
