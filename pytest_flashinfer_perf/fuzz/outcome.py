"""What became of one example: right, rejected in a way that says why, or a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["right", "skipped", "refused", "wrong", "failed", "crashed", "hung", "broken"]
FINDINGS: Sequence[Kind] = ("wrong", "failed", "crashed", "hung", "broken")


@dataclass(frozen=True)
class Outcome:
    """`skipped` is by what is known of the backend, `refused` by a clean error of the library; `failed` is by another
    one, `crashed` with the process; `broken` is our own part: inputs, or the reference.
    """

    kind: Kind
    sentence: str = ""
    sampled: bool = False
    log: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS
