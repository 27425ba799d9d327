"""Texts with something else in them here and there."""

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
