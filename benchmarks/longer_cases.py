"""The cases of a testlist with about 3 % more work: python benchmarks/longer_cases.py benchmarks/noise_cases.txt

Contexts and the inner dimension of products grow; a shape that cannot grow by so little is left out. The rows of such a
run are compared with those of the original list after `python benchmarks/longer_cases.py --rename LIST RUN.json`, which
gives them the original's names: the gate is then to find what it does not know to have been planted. So on a GPU, for
eight processes of each, of which every pair is one comparison for each case:

    LIST=benchmarks/noise_cases.txt
    python benchmarks/longer_cases.py $LIST > longer.txt
    for n in 1 2 3 4 5 6 7 8; do
        pytest $LIST --benchmark-json=plain/$n.json
        pytest longer.txt --benchmark-json=longer/$n.json
        python benchmarks/longer_cases.py --rename $LIST longer/$n.json
    done
    python benchmarks/longer_cases.py --found plain longer

LONGER=1.03 does the same to benchmarks/noise_kernels.py; `--found` takes the folders of several such pairs.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.gate.figures import kernel_times
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Rules, Verdict
from pytest_flashinfer_perf.plugin import lines
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.spec import flags

SHARE = 1.03
STEP = {"--s_kv": 1, "--k": 128}  # what no kernel pads away
Band = tuple[float, float]  # the least share by which a case takes longer, and the seconds that it takes more than
BANDS: tuple[Band, ...] = ((0.0285, 20e-6), (0.048, 5e-6))


def longer(line: str) -> str | None:
    """The line with its context or inner dimension grown, or nothing where it has neither."""
    words = line.split()
    places = [i + 1 for i, word in enumerate(words) if word in STEP]
    if not places:
        return None
    for place in places:
        step = STEP[words[place - 1]]
        words[place] = str(-(-round(int(words[place]) * SHARE) // step) * step)
    return " ".join(words)


def pairs(path: str) -> list[tuple[str, str]]:
    given = [line for line in Path(path).read_text().splitlines() if line.startswith("--")]
    return [(line, grown) for line in given if (grown := longer(line))]


def names(line: str) -> list[str]:
    """Of the line's cases, in order."""
    return [one.identity.case for one in lines.cases_of(flags.split(line), all_routines())]


def rename(path: str, run: str) -> None:
    new = {now: was for line, grown in pairs(path) for was, now in zip(names(line), names(grown), strict=True)}
    document = json.loads(Path(run).read_text())
    for record in document["benchmarks"]:
        record["extra_info"]["case"] = new[record["extra_info"]["case"]]
    Path(run).write_text(json.dumps(document))


def growth(plain: list[Run], grown: list[Run]) -> dict[str, float]:
    """By how much each case takes longer, all processes against all."""
    both = set.intersection(*(set(run.by_case) for run in (*plain, *grown)))
    return {name: _median(grown, name) / _median(plain, name) - 1 for name in both}


def _median(processes: list[Run], name: str) -> float:
    """Of the time in which the case's kernels run."""
    return statistics.median(one.value for one in kernel_times([run.by_case[name] for run in processes]))


def found(*folders: str) -> Iterator[str]:
    """How the gate judges each plain process against each longer one, by what was planted and how long a call takes."""
    verdicts: dict[Band, Counter[Verdict]] = {band: Counter() for band in BANDS}
    for one, other in zip(folders[::2], folders[1::2], strict=True):
        plain, grown = read.read([one]), read.read([other])
        planted = growth(plain, grown)
        for base, head in itertools.product(plain, grown):
            for case in (one for one in judge([base], [head], Rules()).cases if one.name in planted):
                for least, above in BANDS:
                    if planted[case.name] >= least and _median(plain, case.name) > above:
                        verdicts[least, above][case.verdict] += 1
    yield "| planted | calls above | comparisons | found SLOWER |\n|---|---|---|---|"
    for (least, above), counts in verdicts.items():
        shown = f"{counts.total():,} | {counts[Verdict.SLOWER]:,}"
        yield f"| {100 * least:g} % or more | {1e6 * above:g} us | {shown} |"


def main(*words: str) -> None:
    if words[0] == "--rename":
        rename(*words[1:])
    elif words[0] == "--found":
        print("\n".join(found(*words[1:])))
    else:
        print("\n".join(grown for _, grown in pairs(words[0])))


if __name__ == "__main__":
    main(*sys.argv[1:])
