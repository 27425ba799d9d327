"""Nights as they were published, made up: a sequence of figures per case, and what else happens."""

import hashlib
import json
import random
from datetime import datetime, timedelta, timezone

START = datetime(2026, 1, 1, 3, tzinfo=timezone.utc)
CARD = {"gpu": "NVIDIA H200", "card": "GPU-0", "software": {"driver": "580", "flashinfer": "0.7.2"}}
TRIES = 4  # cases in which nothing happens
BATCHES = {"drifts": 16, "steps": 32, "named": 64}


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
    flags = f"--routine decode --backends fa3 --batch_size {BATCHES.get(key, key)}"
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


class Sixty:
    """Sixty nights in which a case drifts, one gets slower by a step and one is renamed; a driver is updated, a card
    is exchanged, a night is missing. Which nights these are depends on the seed, as the noise does.
    """

    def __init__(self, seed, sd=0.004, step=0.03, drift=0.003, length=60):
        rng = self.rng = random.Random(seed)
        self.sd, self.step, self.drift, self.length = sd, step, drift, length
        self.levels = {key: rng.uniform(10, 500) for key in ("drifts", "steps", "named", *map(str, range(TRIES)))}
        self.driver_at, self.card_at = rng.randrange(8, 20), length - 6
        self.step_at, self.rename_at = rng.randrange(25, 45), rng.randrange(5, 50)
        self.drift_at = rng.randrange(10, 30)
        self.missing = rng.choice([n for n in range(3, 57) if n not in (self.driver_at, self.card_at, self.rename_at)])

    def log(self, key, number):
        if key == "drifts":
            return self.drift * max(0, number - self.drift_at)
        return self.step if key == "steps" and number >= self.step_at else 0.0

    def lines(self):
        """The lines of each night, None for the missing one."""
        known = set()
        for number in range(self.length):
            if number == self.missing:
                yield None
                continue
            card, shared = self.card(number), []
            for name, text in self.shared(number, card):
                if name not in known:
                    known.add(name)
                    shared.append(text)
            yield "".join(shared) + self.night(number, card)

    def card(self, number):
        software = {**CARD["software"], "driver": "590" if number >= self.driver_at else "580"}
        return environment(software=software, card="GPU-1" if number >= self.card_at else "GPU-0")

    def shared(self, number, card):
        yield card[0], line("environment", card[0], **card[1])
        for key in self.levels:
            name = f"decode/{'renamed' if key == 'named' and number >= self.rename_at else key}"
            yield name, case(key, name)
        for name in ("old_kernel", "new_kernel"):
            yield name, line("kernels", name, names=[name])

    def night(self, number, card):
        other = 0.02 if number >= self.card_at else 0.0
        figures = {
            key: us * 2.718281828 ** (self.log(key, number) + other + self.rng.gauss(0, self.sd))
            for key, us in self.levels.items()
        }
        kernels = ["new_kernel" if self.log(k, number) and k == "steps" else "old_kernel" for k in figures]
        return night(number, figures, card[0], kernels=kernels)
