"""Nights as they were published, made up: a sequence of figures per case, and what else happens."""

import hashlib
import json
from datetime import datetime, timedelta, timezone

START = datetime(2026, 1, 1, 3, tzinfo=timezone.utc)
CARD = {"gpu": "NVIDIA H200", "card": "GPU-0", "software": {"driver": "580", "flashinfer": "0.7.2"}}


def commit_of(number):
    return hashlib.sha1(str(number).encode()).hexdigest()


def line(kind, name, /, **said):
    return json.dumps({"kind": kind, "id": name, **said}) + "\n"


def environment(**said):
    """An id and what it says, of a card with other software or another card."""
    made = {**CARD, **said}
    return json.dumps(made), made


def case(key, name=None):
    name = name or f"decode/{key}"
    flags = f"--routine decode --backends fa3 --batch_size {key}"
    said = {"name": name, "test": f"t.py::test[{name}]", "routine": "decode", "family": "attention", "flags": flags}
    return line("case", key, **said, repro=f"pytest '--perf-case={flags}'")


def night(number, figures, where, *, kernels=None, commit=None, failed=None, ghz=1.9, day=None):
    count = len(figures)
    when = START + timedelta(days=number if day is None else day)
    columns = {name: [None] * count for name in ("busy_us", "cycles")}
    columns |= {"us": list(figures.values()), "noise": [0.001] * count, "ghz": [ghz] * count}
    said = {"schema": 1, "when": when.isoformat(), "environment": where, "case": list(figures), **columns}
    said |= {"kernels": kernels or [None] * count, "commit": commit or commit_of(number), "failed": failed or {}}
    return line("run", f"run-{number}", **said)
