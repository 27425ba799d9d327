"""The files of many nights' runs, made up: a figure per case, and what else happens."""

import hashlib
import json
import random
from datetime import datetime, timedelta, timezone

from made import document, row

START = datetime(2026, 1, 1, 3, tzinfo=timezone.utc)
CARD = {"gpu": "NVIDIA H200", "card": "GPU-0", "software": {"driver": "580", "flashinfer": "0.7.2"}}
TRIES = 4  # cases in which nothing happens


def commit_of(number):
    return hashlib.sha1(str(number).encode()).hexdigest()


def environment(**said):
    """A card with its software."""
    return {**CARD, **said}


def night(number, figures, where, *, failed=None, day=None, of_case=None, **said):
    """The document of a run; `figures` has microseconds by the name of a case, `of_case` more of some rows."""
    card = {"device_name": where["gpu"], "gpu_uuid": where["card"], "sm_ghz": 1.9, "placements": [], **said}
    rows = []
    for name, us in figures.items():
        repro = f"pytest '--perf-case=--routine decode --name {name}'"
        rows.append(row(f"decode/{name}", us, **{**card, "repro": repro, **(of_case or {}).get(name, {})}))
    when = START + timedelta(days=number if day is None else day)
    lost = [{"case": case, "outcome": "failed", "reason": reason} for case, reason in (failed or {}).items()]
    known = {"when": when.isoformat(), "commit": commit_of(number), "machine": where["software"]}
    return document(*rows, unmeasured=lost, **known)


def write(folder, documents, first=0):
    folder.mkdir(parents=True, exist_ok=True)
    for nth, one in enumerate(documents, first):
        (folder / f"{nth:04}.json").write_text(json.dumps(one))
    return folder


class Sixty:
    """Sixty nights in which a case drifts and one gets slower by a step; a driver is updated, a card is exchanged, a
    night is missing. Which nights these are depends on the seed, as the noise does.
    """

    def __init__(self, seed, sd=0.004, step=0.03, drift=0.003, length=60):
        rng = self.rng = random.Random(seed)
        self.sd, self.step, self.drift, self.length = sd, step, drift, length
        self.levels = {key: rng.uniform(10, 500) for key in ("drifts", "steps", *map(str, range(TRIES)))}
        self.driver_at, self.card_at = rng.randrange(8, 20), length - 6
        self.step_at, self.drift_at = rng.randrange(25, 45), rng.randrange(10, 30)
        self.missing = rng.choice([n for n in range(3, 57) if n not in (self.driver_at, self.card_at)])

    def log(self, key, number):
        if key == "drifts":
            return self.drift * max(0, number - self.drift_at)
        return self.step if key == "steps" and number >= self.step_at else 0.0

    def documents(self):
        return [self.night(number) for number in range(self.length) if number != self.missing]

    def night(self, number):
        software = {**CARD["software"], "driver": "590" if number >= self.driver_at else "580"}
        where = environment(software=software, card="GPU-1" if number >= self.card_at else "GPU-0")
        other = 0.02 if number >= self.card_at else 0.0
        figures = {
            key: us * 2.718281828 ** (self.log(key, number) + other + self.rng.gauss(0, self.sd))
            for key, us in self.levels.items()
        }
        kernels = {key: {"kernels": ["old_kernel"]} for key in figures}
        if self.log("steps", number):
            kernels["steps"] = {"kernels": ["new_kernel"]}
        return night(number, figures, where, of_case=kernels)
