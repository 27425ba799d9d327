"""Ten commits of an RMS norm in Triton, one of them slow: python tests/acceptance/bisect_triton.py DIR

Commit 3 does not compile, commit 6 also writes a byte for each element, which is a quarter more traffic; the others
change nothing that is timed. On a GPU, in DIR: flashinfer-perf bisect --repo . --good main~9 --bad main -- test_norm.py
"""

import sys
from pathlib import Path

from bisect_acceptance import repository

KERNEL = '''"""RMS norm of rows."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, weight, out{MASK_ARGUMENT}, columns: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    {NAME} = tl.arange(0, block)
    inside = {NAME} < columns
    value = tl.load(x + row + {NAME}, inside, 0.0).to(tl.float32)
    scale = tl.{RSQRT}(tl.sum(value * value) / columns + 1e-6)
    value = value * scale * tl.load(weight + {NAME}, inside, 0.0).to(tl.float32)
    tl.store(out + row + {NAME}, value.to(out.dtype.element_ty), inside)
{MASK_STORE}

def rms_norm(x, weight, out):
    rows, columns = x.shape
{MASK_MADE}    _kernel[(rows,)](x, weight, out{MASK_PASSED}, columns, triton.next_power_of_2(columns), num_warps=8)
'''
TEST = """import pytest
import torch
from norm import rms_norm


@pytest.mark.parametrize("rows", [4096, 16384])
def test_norm(perf, rows):
    x, weight = (torch.randn(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((rows, 4096), (4096,)))
    perf.time(
        rms_norm,
        x,
        weight,
        out=torch.empty_like(x),
        bytes=2 * x.nbytes + weight.nbytes,
        reference=lambda: torch.nn.functional.rms_norm(x.float(), (4096,), weight.float(), 1e-6),
    )
"""
MASK = {
    "MASK_ARGUMENT": ", large",
    "MASK_STORE": "    tl.store(large + row + {NAME}, (value * value > 1.0).to(tl.int8), inside)\n",
    "MASK_MADE": "    large = torch.empty(x.shape, dtype=torch.int8, device=x.device)\n",
    "MASK_PASSED": ", large",
}
COMMITS, BROKEN, RENAMED, SLOW = 10, 3, 5, 6


def kernel(number: int) -> str:
    parts = dict.fromkeys(MASK, "") if number < SLOW else dict(MASK)
    parts["RSQRT"] = "reciprocal_root" if number == BROKEN else "rsqrt"
    text = KERNEL
    for name, part in parts.items():
        text = text.replace("{" + name + "}", part)
    return text.replace("{NAME}", "offsets" if number < RENAMED else "column")


def files(number: int) -> dict[str, str]:
    return {"norm.py": kernel(number), "test_norm.py": TEST, "CHANGES.md": f"Change {number}"}


if __name__ == "__main__":
    ids = repository(Path(sys.argv[1]), [files(number) for number in range(COMMITS)])
    print(f"slow from {ids[SLOW][:7]} on, commit {SLOW} of {COMMITS}")
