"""Texts with something else in them here and there."""

import copy
import random
import string


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
