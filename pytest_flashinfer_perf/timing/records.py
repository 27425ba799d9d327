"""Read the common fields of CUPTI's activity records in one pass.

cupti-python 13.0, which is what pip installs beside a torch for CUDA 13.0, reads each field of each record through
numpy. From 13.2 on records are structures of C, cheap to read, and are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

FIELDS = ("kind", "start", "end", "correlation_id", "cbid")


class Copied:
    """Fields as plain integers; any other attribute is that of CUPTI's own record."""

    def __init__(self, own: Any, fields: Mapping[str, int]) -> None:
        self.__dict__.update(fields, _own=own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


@contextmanager
def read_together() -> Iterator[None]:
    """Give callbacks that are registered meanwhile records that are cheap to read."""
    from cupti import cupti

    register = cupti.activity_register_callbacks

    def registered(requested: Callable[[], object], completed: Callable[[Sequence[Any]], object]) -> object:
        return register(requested, lambda records: completed(copied(records)))

    cupti.activity_register_callbacks = registered
    try:
        yield
    finally:
        cupti.activity_register_callbacks = register


def copied(records: Sequence[Any]) -> list[Any]:
    """The records in their order."""
    types = [type(record) for record in records]
    of_type = {one: iter(_of_one_type([r for r in records if type(r) is one])) for one in set(types)}
    return [next(of_type[one]) for one in types]


def _of_one_type(records: list[Any]) -> list[Any]:
    """Copies, or the records themselves where their memory is not what they say."""
    try:
        copies = _copies(records)
    except (AttributeError, BufferError, TypeError, ValueError):
        return records
    last = vars(copies[-1])
    return copies if all(last[name] == getattr(records[-1], name) for name in last.keys() & FIELDS) else records


def _copies(records: list[Any]) -> list[Any]:
    import numpy as np

    memory = [record._data for record in records]  # noqa: SLF001 - no public name has it
    layout = memory[0].dtype
    names = [name for name in FIELDS if name in layout.names]
    rows = np.frombuffer(b"".join(memory), layout)[names].tolist()
    return [Copied(record, dict(zip(names, row, strict=True))) for record, row in zip(records, rows, strict=True)]
