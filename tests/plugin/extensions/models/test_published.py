"""The suite's published models, which are data, against the config.json of each."""

import pytest

from pytest_flashinfer_perf.extensions.models import shipped
from pytest_flashinfer_perf.extensions.models.description import Dense, Experts, Grouped
from pytest_flashinfer_perf.routines.published_models import (
    GROUPED,
    HYBRID,
    LATENT,
    GroupedHeads,
    Latent,
    PublishedModel,
    RoutedExperts,
)

MODELS = GROUPED | LATENT | HYBRID
WITHOUT_CONFIG = {"qwen3-4b", "qwen3-14b", "gemma-3-12b"}


def published(name):
    model = shipped.model(name)
    heads, dense, experts = model.first(Grouped), model.first(Dense), model.first(Experts)
    return PublishedModel(
        model.hidden,
        model.vocabulary,
        GroupedHeads(heads.heads, heads.kv_heads, heads.head_dim) if heads else model.first(Latent),
        dense and dense.width,
        experts and RoutedExperts(experts.count, experts.chosen, experts.width, experts.routing),
    )


@pytest.mark.parametrize("name", sorted(MODELS.keys() - WITHOUT_CONFIG))
def test_a_published_model_has_the_sizes_of_its_config(name):
    assert MODELS[name] == published(name)
