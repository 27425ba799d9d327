"""How long pytest needs to collect 10,000 cases: python benchmarks/collect.py

Prints the seconds beyond the import of torch; the aim is under 5 s on 2 cores.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = 10_000
TEST = """
import pytest
from pytest_flashinfer_perf.routines.attention.decode import SMOKE, decode
from dataclasses import replace

SHAPES = [replace(SMOKE, batch_size=1 + i) for i in range({shapes})]

@pytest.mark.perf_cases(decode, *SHAPES)
def test_decode(perf, case):
    perf(case)
"""


def seconds(*command):
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    return time.perf_counter() - start, done.stdout


def main():
    from pytest_flashinfer_perf.routines.attention.decode import decode

    backends = len(decode.backends)
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test_many.py"
        test.write_text(TEST.format(shapes=-(-CASES // backends)))
        importing, _ = seconds("-c", "import torch")
        collecting, output = seconds("-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", str(test))
    print(output.strip().splitlines()[-1])
    print(f"{collecting - importing:.2f} s beyond the {importing:.2f} s of importing torch")


if __name__ == "__main__":
    main()
