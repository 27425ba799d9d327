# test_norm.py
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def my_norm(x, weight, out):
    torch.mul(x * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt().to(x.dtype), weight, out=out)


@pytest.mark.parametrize("rows", [1, 64])
def test_norm(perf, rows):
    x, weight = (torch.randn(*shape, dtype=torch.bfloat16, device=DEVICE) for shape in ((rows, 4096), (4096,)))
    perf.time(
        my_norm,
        x,
        weight,
        out=torch.empty_like(x),
        flops=4 * x.numel(),
        bytes=2 * x.nbytes + weight.nbytes,
        reference=lambda: torch.nn.functional.rms_norm(x.float(), (4096,), weight.float(), 1e-6),
    )
