"""Layers that keep a state instead of a cache of keys and values."""

from __future__ import annotations

from pytest_flashinfer_perf.models.config_json import Fields
from pytest_flashinfer_perf.models.description import Recurrent


def mamba(config: Fields) -> Recurrent:
    """Mamba 2: x, its gate, B, C and the time steps from one projection."""
    heads, size = config.number("mamba_num_heads"), config.number("mamba_head_dim")
    inner, states = heads * size, 2 * config.number("n_groups") * config.number("ssm_state_size")
    convolution = (inner + states) * (config.number("conv_kernel") + config.switch("use_conv_bias"))
    state = inner * config.number("ssm_state_size")
    return Recurrent("Mamba 2", 2 * inner + states + heads, inner, convolution + 3 * heads + inner, state)


def gated_delta_net(config: Fields) -> Recurrent:
    """Queries, keys, values, an output gate, and two numbers for each value head."""
    heads, size = config.number("linear_num_value_heads"), config.number("linear_value_head_dim")
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    values = heads * size
    convolution = (2 * keys + values) * config.number("linear_conv_kernel_dim")
    state, other = values * config.number("linear_key_head_dim"), convolution + 2 * heads + size
    return Recurrent("gated delta net", 2 * keys + 2 * values + 2 * heads, values, other, state)
