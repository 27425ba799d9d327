"""Planted errors of a fused MoE's kernels, each caught with every variant's tolerance."""

from dataclasses import replace

import pytest
import torch
from moe_layers import PLAIN, VARIANTS, plain, stored


def swapped_experts(x):
    return stored(x, first=x.stored.first.roll(1, 0))


def swapped_gate_and_up(x):
    return stored(x, first=torch.cat(x.stored.first.chunk(2, 1)[::-1], 1))


def another_experts_scale(x):
    return stored(x, by_first=x.stored.by_first.roll(1))


def dropped_scale(x):
    return stored(x, by_second=torch.ones_like(x.stored.by_second))


def another_rows_blocks(x):
    blocks = x.stored.first_blocks
    return stored(x, first_blocks=blocks.view(torch.uint8).roll(1, 1).view(blocks.dtype))


def another_experts_tiles(x):
    return stored(x, first_scales=x.stored.first_scales.roll(1, 0))


def dropped_tiles(x):
    return stored(x, second_scales=torch.ones_like(x.stored.second_scales))


def halves_swapped(x):
    pairs = x.stored.first.view(torch.uint8)
    return stored(x, first=(pairs >> 4 | pairs << 4).view(torch.int8))


def equal_weights(x):
    return x._replace(weights=torch.full_like(x.weights, 0.5))


def one_token_lost(x):
    weights = x.weights.clone()
    weights[7] = 0
    return x._replace(weights=weights)


def second_choice_lost(x):
    return x._replace(weights=x.weights * torch.tensor([1.0, 0.0]))


def empty_expert_forgotten(x):
    """Experts after the first that nobody chose are one off."""
    empty = min(set(range(8)) - set(x.selected.flatten().tolist()))
    return x._replace(selected=torch.where(x.selected > empty, x.selected - 1, x.selected))


FAULTS = (swapped_experts, swapped_gate_and_up, equal_weights, one_token_lost, second_choice_lost)
OF_SCALES = (another_experts_scale, dropped_scale)
PLANTED = [
    *(("base", fault) for fault in FAULTS),
    *(("fp8", fault) for fault in FAULTS + OF_SCALES),
    *(("nvfp4", fault) for fault in (*FAULTS, *OF_SCALES, another_rows_blocks)),
    *(("deepseek_fp8_block_scale", fault) for fault in (*FAULTS, another_experts_tiles, dropped_tiles)),
    *(("w4a8", fault) for fault in (*FAULTS, *OF_SCALES, another_experts_tiles, dropped_tiles, halves_swapped)),
]


@pytest.mark.parametrize(("variant", "fault"), PLANTED)
def test_a_wrong_kernel_is_caught(moe, variant, fault):
    p = plain(variant)
    wrong = moe.launched(p, fault(moe.inputs(p)))
    assert moe.rule(p, wrong, moe.inputs(p))
    assert moe.rule(p, wrong, moe.inputs(p), "cutlass")


def test_an_expert_that_nobody_chose_is_not_counted_in(moe):
    p = replace(PLAIN, num_tokens=3)
    seed = next(s for s in range(99) if 0 in set(range(7)) - set(moe.inputs(p, s).selected.flatten().tolist()))
    right = moe.inputs(p, seed)
    assert moe.rule(p, moe.launched(p, empty_expert_forgotten(moe.inputs(p, seed))), right)
    unchosen = moe.inputs(p, seed)
    unchosen.stored.first[0] = float("nan")
    assert moe.rule(p, moe.launched(p, unchosen), right) == ""


@pytest.mark.parametrize("value", [0.0, float("nan"), 1.02])
def test_a_wrong_output_is_caught(moe, value):
    for variant in VARIANTS:
        p = plain(variant)
        x = moe.inputs(p)
        out = moe.launched(p, x)
        out *= value
        assert moe.rule(p, out, x)
