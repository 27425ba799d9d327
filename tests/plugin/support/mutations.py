"""Texts with something else in them here and there, and what is said of files that hold them."""

import copy
import json
import random
import string

import pytest

from pytest_flashinfer_perf.errors import FlashinferPerfError


def few_and(many, count):
    """As many as the statement needs, and many where there is time for more."""
    return pytest.mark.parametrize("count", [count, pytest.param(many, marks=pytest.mark.more)])


def mutated(rand: random.Random, text, changes):
    letters = list(text)
    for _ in range(changes):
        place = rand.randrange(len(letters) + 1)
        letters[place : place + rand.choice([0, 1, 5])] = rand.choice(
            [*string.printable, "\x00", "\u00e9", "-1", "null"]
        )
    return "".join(letters)


STRANGE = (
    *(None, True, False, 0, -1, 1, 1 << 70, 10**400, 1e-320, 1e308, -1e308, float("nan"), float("inf"), 0.5),
    *("", "x", "nan", "\ud800", "x\n::error::y\x1b[2J", "2026-01-01", "gpu-0", "1" * 5000, "é" * 300),
    *([], {}, [None], [[]], {"": ""}, {"a": {"b": [1]}}, [1, "2", {}], [0.0] * 50),
)


def changed(rand: random.Random, document, changes):
    """A copy of a document with strange values here and there, or members gone, doubled or under other names."""
    made = copy.deepcopy(document)
    for _ in range(changes):
        places = list(_places(made))
        if places:
            holder, name = rand.choice(places)
            _change(rand, holder, name)
    return made


def _places(document):
    for name in document if isinstance(document, dict) else range(len(document)):
        yield document, name
        if isinstance(document[name], (dict, list)) and document[name]:
            yield from _places(document[name])


def _change(rand, holder, name):
    way = rand.randrange(8)
    if way == 0:
        del holder[name]
    elif way == 1 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[name]))
    elif way == 2 and isinstance(holder, dict):
        holder[str(rand.choice(STRANGE))[:20]] = holder.pop(name)
    elif way == 3:
        for _ in range(rand.choice([3, 60])):
            holder[name] = [holder[name]]
    else:
        holder[name] = copy.deepcopy(rand.choice(STRANGE))


def texts(rand, good, count):
    """Strange texts made of good documents: other structures, and structures that are broken."""
    for _ in range(count):
        if rand.random() < 0.7:
            yield json.dumps(changed(rand, good, rand.choice([1, 1, 2, 5])))
        else:
            yield mutated(rand, json.dumps(good), rand.choice([1, 2, 10]))


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", "surrogatepass")
    return path


def as_json(rand, good, *, strange=True):
    return next(texts(rand, good, 1)) if strange else json.dumps(good)


def as_lines(rand, good, *, strange=True):
    lines = [as_json(rand, one, strange=strange and rand.random() < 0.4) for one in good]
    return as_text(rand, "".join(f"{line}\n" for line in lines), strange=strange and rand.random() < 0.5)


def as_text(rand, good, *, strange=True):
    return mutated(rand, good, rand.choice([1, 2, 5])) if strange else good


def said_of(path, read, make, good, count):
    """The sentences by which strange files are refused; some are read, and so is one that is not strange."""
    rand, said = random.Random(2), []
    read(put(path, make(random.Random(0), good, strange=False)))
    for _ in range(count):
        put(path, make(rand, good))
        try:
            read(path)
            said.append("")
        except FlashinferPerfError as error:
            said.append(str(error))
    assert "" in said
    assert all(one == "" or (str(path) in one and "\n" not in one) for one in said)
    return set(said)
