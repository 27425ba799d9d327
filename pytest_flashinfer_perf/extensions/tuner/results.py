"""What a report holds, as `tune-report.json` has it; `tune_report.schema.json` is generated from these types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pytest_flashinfer_perf.api import thresholds
from pytest_flashinfer_perf.extensions.tuner.sets import Regret

FORMAT = "flashinfer-perf tune-report 4"
DEFAULT = "default"  # what is chosen where nothing was tuned
TUNE = "tune "  # and a number: what a fresh process chose

State = Literal["best", "slower", "wrong", "fails", "untimed"]
Verdict = Literal["FAIL", "UNJUDGED", "NOTE"]


@dataclass(frozen=True)
class TacticResult:
    """A tactic that could be chosen."""

    tactic: Annotated[str, "runner and tactic, with the operation in front where a call asks more than once"]
    state: Annotated[State, "`best`: it is not surely slower than any other"]
    why: Annotated[str, "why it is out of the race or may be another one, if so"] = ""
    seconds: Annotated[tuple[float, ...], "the median of each placement in which it was timed"] = ()
    regret: Annotated[Regret | None, "how much slower than the best; `null` where it was not timed with it"] = None

    @property
    def is_unfit(self) -> bool:
        return self.state in ("wrong", "fails")


@dataclass(frozen=True)
class QuestionResult:
    """An operation that asked the tuner."""

    op: Annotated[str, "its name in FlashInfer"]
    runners: Annotated[tuple[str, ...], "those that it offered"]
    broken: Annotated[tuple[str, ...], "a sentence for each runner that could not list its tactics"] = ()


@dataclass(frozen=True)
class CaseRace:
    """A case, with everything that could be chosen for it. A way is how one comes to be chosen."""

    case: Annotated[str, "as in a row"]
    family: Annotated[str, "`attention`, `gemm` or `moe`"]
    instrument: Annotated[str, "`cupti`, `events` or `wall`"]
    cuda_graph: Annotated[bool, "whether calls were replayed from CUDA graphs"]
    device: Annotated[str, "the model of the GPU or CPU"]
    rounds: Annotated[int, "in which each that was left was timed once"]
    tactics: Annotated[tuple[TacticResult, ...], "all that could be chosen"]
    best: Annotated[tuple[str, ...], "those that cannot be told from the fastest, which is the first"]
    ways: Annotated[Mapping[str, str], "the tactic of each way: `default`, `tune 1`, `cache`"]
    untuned: Annotated[tuple[str, ...], "ways without an entry that covers the case: they took the default"] = ()
    questions: Annotated[tuple[QuestionResult, ...], "what it asks the tuner"] = ()
    test: Annotated[str, "the id of its test"] = ""

    @property
    def glob_names(self) -> tuple[str, ...]:
        return thresholds.names_of_case(self.case, self.family, self.test.rpartition("::")[2], self.test)

    def tactic(self, name: str) -> TacticResult | None:
        return next((one for one in self.tactics if one.tactic == name), None)

    def regret(self, name: str) -> Regret | None:
        result = self.tactic(name)
        return result.regret if result else None

    @property
    def tunes(self) -> list[str]:
        """The tactics that fresh processes chose."""
        return [name for way, name in self.ways.items() if way.startswith(TUNE)]


@dataclass(frozen=True)
class LeftOut:
    """A case without a race."""

    case: Annotated[str, "as in a row"]
    outcome: Annotated[Literal["skipped", "failed"], "a skipped one has nothing to choose, or cannot run here"]
    why: Annotated[str, "the reason"]


@dataclass(frozen=True)
class TunerFinding:
    """A verdict of a case: the command exits with 1 for FAIL, with 2 for UNJUDGED, with 0 for NOTE."""

    verdict: Annotated[Verdict, "`UNJUDGED`: what was asked for is not known"]
    case: Annotated[str, "as in a row"]
    sentence: Annotated[str, "what was found"]

    @property
    def fails(self) -> bool:
        return self.verdict == "FAIL"

    @property
    def line(self) -> str:
        return f"{self.verdict} {self.case}: {self.sentence}"


@dataclass(frozen=True)
class Report:
    """The whole file."""

    format: Annotated[str, f"`{FORMAT}`"]
    versions: Annotated[Mapping[str, str | None], "of what is installed, with the card's UUID; `null` for what is not"]
    cases: Annotated[tuple[CaseRace, ...], "those with a race"]
    left_out: Annotated[tuple[LeftOut, ...], "the others"] = ()
    findings: Annotated[tuple[TunerFinding, ...], "in the order of the cases"] = ()
