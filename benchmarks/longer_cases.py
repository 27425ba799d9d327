"""The cases of a testlist with about 3 % more work: python benchmarks/longer_cases.py benchmarks/noise_cases.txt

Contexts and the inner dimension of products grow; a shape that cannot grow by so little is left out. The rows of such a
run are compared with those of the original list after `python benchmarks/longer_cases.py --rename LIST RUN.json`, which
gives them the original's names: the gate is then to find what it does not know to have been planted.
"""

import json
import sys
from pathlib import Path

SHARE = 1.03
STEP = {"--s_kv": 1, "--k": 128}  # what no kernel pads away


def longer(line):
    """The line with its context or inner dimension grown, or nothing where it has neither."""
    words = line.split()
    places = [i + 1 for i, word in enumerate(words) if word in STEP]
    if not places:
        return None
    for place in places:
        step = STEP[words[place - 1]]
        words[place] = str(-(-round(int(words[place]) * SHARE) // step) * step)
    return " ".join(words)


def pairs(path):
    lines = [line for line in Path(path).read_text().splitlines() if line.startswith("--")]
    return [(line, grown) for line in lines if (grown := longer(line))]


def names(line):
    """Of the line's cases, in order."""
    from pytest_flashinfer_perf import case, flags
    from pytest_flashinfer_perf.routines import all_routines

    return [one.identity["case"] for one in case.read(flags.split(line), all_routines())]


def rename(path, run):
    new = {now: was for line, grown in pairs(path) for was, now in zip(names(line), names(grown), strict=True)}
    document = json.loads(Path(run).read_text())
    for record in document["benchmarks"]:
        record["extra_info"]["case"] = new[record["extra_info"]["case"]]
    Path(run).write_text(json.dumps(document))


if __name__ == "__main__":
    if sys.argv[1] == "--rename":
        rename(*sys.argv[2:])
    else:
        print("\n".join(grown for _, grown in pairs(sys.argv[1])))
