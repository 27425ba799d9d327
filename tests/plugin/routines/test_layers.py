import pytest

from pytest_flashinfer_perf.routines import all_routines, layers
from pytest_flashinfer_perf.spec.params import ParamError

PRESETS = (layers.attention, layers.latent, layers.expanded, layers.chosen_experts)
MOE = [routine for routine in all_routines().values() if routine.family == "moe"]


def test_a_share_of_a_model_has_its_share_of_heads_and_at_least_one_of_keys():
    assert layers.attention("llama-3.1-70b", 8).parameters["num_qo_heads"] == 8
    assert layers.attention("qwen3-235b-a22b", 8).parameters["num_kv_heads"] == 1
    assert layers.latent("kimi-k2", 8).parameters == {"num_qo_heads": 8, "head_dim_ckv": 512, "head_dim_kpe": 64}
    expanded = layers.expanded("deepseek-v3").parameters
    assert (expanded["num_kv_heads"], expanded["head_dim_qk"], expanded["head_dim_vo"]) == (128, 192, 128)
    assert layers.expanded("mixtral-8x7b").parameters == layers.attention("mixtral-8x7b").parameters


def test_a_share_of_a_model_has_its_share_of_experts_or_of_each():
    part = layers.experts("deepseek-v3", 2, 1, 32).parameters
    assert (part["num_experts"], part["local_num_experts"], part["intermediate_size"]) == (256, 8, 1024)
    assert (part["n_group"], part["topk_group"], part["routed_scaling_factor"]) == (8, 4, 2.5)
    told = layers.chosen_experts("qwen3-30b-a3b", 8, 1, 8).parameters
    assert (told["intermediate_size"], told["tp_size"], told["ep_size"]) == (768, 8, 8)
    assert layers.experts("kimi-k2", ep=32).name == "kimi-k2-ep32"
    with pytest.raises(ParamError, match="mixtral-8x7b has 8 experts, which 32 GPUs cannot share evenly"):
        layers.experts("mixtral-8x7b", ep=32)


@pytest.mark.parametrize("presets", PRESETS)
def test_every_preset_makes_valid_shapes_on_every_usual_number_of_gpus(presets):
    routines = [r for r in all_routines().values() if r.presets is presets]
    assert routines
    for routine in routines:
        for model in presets.everywhere():
            assert list(routine.model_shapes(model))


def test_every_model_with_experts_has_shapes_but_what_fp4_cannot_store():
    """An eighth of 2880 columns is no multiple of 32."""
    over = ((routine, model) for routine in MOE for model in routine.presets.everywhere())
    without = {(routine.name, model.name) for routine, model in over if not list(routine.model_shapes(model))}
    assert without == {("trtllm_fp4_block_scale_moe", f"gpt-oss-{size}-tp8") for size in ("20b", "120b")}
