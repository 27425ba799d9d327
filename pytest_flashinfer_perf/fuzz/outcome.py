"""The outcome of one example: right, rejected with a reason, or a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["right", "skipped", "refused", "wrong", "failed", "crashed", "hung", "broken"]
FINDINGS: Sequence[Kind] = ("wrong", "failed", "crashed", "hung", "broken")


@dataclass(frozen=True)
class Outcome:
    """`skipped`: known limits of the backend; `refused`: a documented error of the library; `failed`: another error;
    `crashed`: the process died; `hung`: no answer in time; `broken`: an error in our inputs or reference.
    """

    kind: Kind
    sentence: str = ""
    sampled: bool = False
    log: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS
