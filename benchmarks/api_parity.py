"""Medians of the same cases by two programs, and the bytes that `ncu` counted beside those of the rows.

python benchmarks/api_parity.py beside A... -- B...      # run files, or flashinfer_benchmark.py's CSV, by case_tag
python benchmarks/api_parity.py bytes RUN.json NCU.csv   # the CSV of `ncu --csv --page raw --nvtx`
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def medians(path: str) -> Iterator[tuple[str, float]]:
    """Of each tag, in microseconds."""
    if path.endswith(".csv"):
        for line in csv.DictReader(Path(path).read_text().splitlines()):
            yield line["case_tag"], 1e3 * float(line["median_time"])
        return
    for row in json.loads(Path(path).read_text())["benchmarks"]:
        yield str(row["extra_info"]["case_tag"]), 1e6 * row["stats"]["median"]


def by_tag(paths: Sequence[str]) -> dict[str, list[float]]:
    found = defaultdict(list)
    for path in paths:
        for tag, median in medians(path):
            found[tag].append(median)
    return found


def beside(*arguments: str) -> None:
    middle = arguments.index("--")
    first, second = by_tag(arguments[:middle]), by_tag(arguments[middle + 1 :])
    print("| case | first | second | difference | within 2 % or 0.1 us | processes |\n|---|---|---|---|---|---|")
    for tag in first:
        if tag not in second:
            print(f"| {tag} | {statistics.median(first[tag]):.3f} | - | - | no second one | {len(first[tag])} |")
            continue
        one, other = statistics.median(first[tag]), statistics.median(second[tag])
        near = "yes" if abs(other - one) <= max(0.02 * one, 0.1) else "no"
        counts = f"{len(first[tag])}, {len(second[tag])}"
        print(f"| {tag} | {one:.3f} | {other:.3f} | {100 * (other / one - 1):+.2f} % | {near} | {counts} |")


def counted(path: str) -> dict[str, list[tuple[str, float]]]:
    """Bytes of each launch, with its kernel, by the case in whose range it was."""
    text = Path(path).read_text().splitlines()
    start = next(nth for nth, line in enumerate(text) if line.startswith('"ID"'))
    lines = csv.DictReader(text[start:])
    units = next(lines)
    found = defaultdict(list)
    for line in lines:
        ranges = " ".join(value for name, value in line.items() if name and "Range" in name and value)
        size = sum(float(line[name].replace(",", "")) * UNITS[units[name]] for name in (READ, WRITTEN))
        found[ranges].append((line["Kernel Name"], size))
    return found


def _function(kernel: str) -> str:
    """The name of the function alone, which the row has within a mangled one."""
    return re.split(r"[<(]", kernel.removeprefix("void "))[0].rpartition("::")[2]


def print_bytes(run: str, counts: str) -> None:
    launches = counted(counts)
    print("| case | derived | counted | counted / derived | kernels of a call |\n|---|---|---|---|---|")
    for row in json.loads(Path(run).read_text())["benchmarks"]:
        info = row["extra_info"]
        name = info["case"].partition("/")[2]
        own = [one for ranges, each in launches.items() if name in ranges for one in each]
        kernels = defaultdict(list)
        for kernel, size in own:
            if any(
                _function(kernel) in of_call for of_call in info["kernels"]
            ):  # not what empties the L2 between calls
                kernels[kernel].append(size)
        if not kernels:
            print(f"| {info['case']} | {info['bytes'] / 1e6:.1f} MB | no kernel in its range | - | - |")
            continue
        size = sum(statistics.median(sizes) for sizes in kernels.values())
        share = size / info["bytes"]
        print(f"| {info['case']} | {info['bytes'] / 1e6:.1f} MB | {size / 1e6:.1f} MB | {share:.3f} | {len(kernels)} |")


if __name__ == "__main__":
    {"beside": beside, "bytes": print_bytes}[sys.argv[1]](*sys.argv[2:])
