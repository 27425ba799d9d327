"""Models by their config.json: what is read, what is counted, and the shapes that one GPU of a deployment runs."""

import json
import random

import pytest
from mutations import mutated

from pytest_flashinfer_perf.extensions.models import architectures, config_json, kernels, shipped
from pytest_flashinfer_perf.extensions.models.config_json import ConfigError, Fields
from pytest_flashinfer_perf.extensions.models.deployment import Step
from pytest_flashinfer_perf.extensions.models.description import Dense, Experts, Grouped, Recurrent
from pytest_flashinfer_perf.routines.published_models import Latent
from pytest_flashinfer_perf.spec.presets import Spread, UnevenError

PUBLISHED = [name for name in shipped.names() if shipped.file_of(name)["published_parameters"]]


def counted(model):
    """All parameters, by the formulas of papers instead of by kernels."""
    tables = model.vocabulary * model.hidden * (1 if model.tied else 2)
    each = (
        sum(in_part(part, model.hidden) for part in (layer.mixer, layer.feed)) + 2 * (1 + model.gemma) * model.hidden
        for layer, count in model.layers
        for _ in range(count)
    )
    return tables + model.hidden + sum(each)


def in_part(part, hidden):
    match part:
        case Grouped():
            queries = part.heads * part.head_dim * (2 if part.gated else 1)
            keys, out = 2 * part.kv_heads * part.head_dim, part.heads * part.head_dim
            biases = (queries + keys) * part.biased + hidden * part.out_biased
            return hidden * (queries + keys + out) + biases + part.heads * part.sinks + part.normed
        case Latent():
            query, value = part.nope_dim + part.rope_dim, part.nope_dim + part.v_dim
            down = hidden * (part.q_rank + part.kv_rank + part.rope_dim) + part.q_rank + part.kv_rank
            return down + part.heads * ((part.q_rank or hidden) * query + part.kv_rank * value + hidden * part.v_dim)
        case Recurrent():
            return hidden * (part.width_in + part.width_out) + part.other
        case Dense():
            return 3 * hidden * part.width
        case Experts():
            router = part.count * (hidden + part.routing.biased + part.biases) + hidden * part.shared_gate
            one = 3 * hidden * part.width + (2 * part.width + hidden) * part.biases
            return router + part.count * one + (in_part(part.shared, hidden) if part.shared else 0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_within_1_percent_of_what_is_published(name):
    published = float(shipped.file_of(name)["published_parameters"].removesuffix("B")) * 1e9
    assert counted(shipped.model(name)) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", shipped.names())
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_every_parameter_of_a_model_is_in_one_kernel_or_gap_and_most_weights_have_a_case(name, phase):
    unquantised = {**shipped.file_of(name)["config"], "quantization_config": None}
    model = architectures.describe(Fields(unquantised, name), name)
    found = kernels.of_step(model, Step(phase=phase))
    assert sum(k.weight_bytes for k in found) == 2 * counted(model)
    assert kernels.covered(found) > 0.9


def sizes(layers, hidden, wide, heads, kv_heads, vocabulary, **more):  # noqa: PLR0917 - as tables of papers have them
    known = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": wide, "vocab_size": vocabulary}
    return {**known, "num_attention_heads": heads, "num_key_value_heads": kv_heads, **more}


GEMMA_3_27B = {k: v for k, v in sizes(62, 5376, 21504, 32, 16, 262208, head_dim=128).items() if k != "vocab_size"}
LATENTS = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK_V2 = {**LATENTS, "first_k_dense_replace": 1, "num_experts_per_tok": 6, "n_shared_experts": 2}
NEXT = {
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "head_dim": 256,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
GLM = {
    "head_dim": 128,
    "attention_bias": True,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
}
SERVED = [  # with the billions of parameters that their makers name
    ("MistralForCausalLM", 7.25, sizes(32, 4096, 14336, 32, 8, 32768, sliding_window=None)),
    ("Phi3ForCausalLM", 14.66, sizes(40, 5120, 17920, 40, 10, 100352, sliding_window=None)),
    ("GraniteForCausalLM", 8.17, sizes(40, 4096, 12800, 32, 8, 49155, tie_word_embeddings=True)),
    ("Mistral3ForConditionalGeneration", 23.57, {"text_config": sizes(40, 5120, 32768, 32, 8, 131072, head_dim=128)}),
    ("Qwen2ForCausalLM", 7.62, sizes(28, 3584, 18944, 28, 4, 152064, sliding_window=131072)),
    ("Qwen2_5_VLForConditionalGeneration", 7.62, sizes(28, 3584, 18944, 28, 4, 152064)),
    ("Qwen2MoeForCausalLM", 57.4, sizes(28, 3584, 18944, 28, 4, 151936, num_experts=64, num_experts_per_tok=8,
                                        moe_intermediate_size=2560, shared_expert_intermediate_size=20480)),
    ("Qwen3NextForCausalLM", 80, sizes(48, 2048, 5120, 16, 2, 151936, **NEXT)),
    ("Gemma3ForCausalLM", 1.0, sizes(26, 1152, 6912, 4, 1, 262144, head_dim=256, sliding_window=512)),
    ("Gemma3ForConditionalGeneration", 27.0, {"text_config": {**GEMMA_3_27B, "sliding_window": 1024}}),
    ("DeepseekV2ForCausalLM", 15.7, sizes(27, 2048, 10944, 16, 16, 102400, **DEEPSEEK_V2, q_lora_rank=None,
                                          n_routed_experts=64, moe_intermediate_size=1408)),
    ("DeepseekV2ForCausalLM", 235.7, sizes(60, 5120, 12288, 128, 128, 102400, **DEEPSEEK_V2, q_lora_rank=1536,
                                           n_routed_experts=160, moe_intermediate_size=1536, n_group=8)),
    ("Glm4MoeForCausalLM", 106, sizes(46, 4096, 10944, 96, 8, 151552, **GLM)),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "billions", "config"), SERVED)
def test_a_much_served_architecture_has_the_parameters_that_are_published(architecture, billions, config):
    model = architectures.describe(Fields({"architectures": [architecture], **config}, "config.json"), "m")
    assert counted(model) == pytest.approx(1e9 * billions, rel=0.01)
    found = kernels.of_step(model, Step(context=2048))
    assert sum(kernel.weight_bytes for kernel in found) == 2 * counted(model)


def test_layers_of_gemma_have_their_own_norms_windows_and_activation():
    """Every sixth of 26 layers attends to all tokens."""
    config = {"architectures": ["Gemma3ForCausalLM"], **SERVED[8][2]}
    model = architectures.describe(Fields(config, "config.json"), "m")
    found = {kernel.name: kernel for kernel in kernels.of_step(model, Step(context=2048))}
    assert (found["attention"].count, found["window attention"].count) == (4, 22)
    assert (found["add-norm"].count, found["post-norm"].count) == (52, 52)
    apis = {found[name].problems[0]["routine"].rpartition(".")[2] for name in ("add-norm", "post-norm", "activation")}
    assert apis == {"gemma_fused_add_rmsnorm", "gemma_rmsnorm", "gelu_tanh_and_mul"}


BY_HAND = {
    # 64 query and 8 KV heads of 128, hidden 8192, feed-forward 28672, vocabulary 128256, 80 layers
    "llama-3.1-70b": (
        Step(batch=64, context=8192, spread=Spread(8)),
        {"qkv": (80, 64, 1280, 8192), "o": (80, 64, 8192, 1024), "gate-up": (80, 64, 7168, 8192),
         "down": (80, 64, 8192, 3584), "lm-head": (1, 64, 16032, 8192)},
        {"attention": (80, {"num_qo_heads": 8, "num_kv_heads": 1, "head_dim_qk": 128, "batch_size": 64, "s_kv": 8192}),
         "all-reduce": (160, {"num_tokens": 64, "hidden_size": 8192, "num_gpus": 8})},
    ),
    # 128 heads, 3 dense layers and 58 of 256 experts of 2048 with one shared; latents of 1536 and 512
    "deepseek-v3": (
        Step(batch=64, spread=Spread(8)),
        {"qkv-down": (61, 64, 2112, 7168), "q-up": (61, 64, 3072, 1536), "o": (61, 64, 7168, 2048),
         "gate-up": (3, 64, 4608, 7168), "down": (3, 64, 7168, 2304), "shared-gate-up": (58, 64, 512, 7168),
         "router": (58, 64, 256, 7168), "absorb-q": (61, 64, 512, 128), "absorb-v": (61, 64, 128, 512)},
        {"experts": (58, {"intermediate_size": 2048, "tp_size": 8, "ep_size": 1},
                     {"intermediate_size": 256, "local_num_experts": 256, "n_group": 8}),
         "absorb-q": (61, {"batch_size": 16}), "absorb-v": (61, {"batch_size": 16})},
    ),
    # each GPU has all heads, 2 of 64 requests, 8 of 256 experts, and the tokens of all groups for them
    "deepseek-v3 on 32": (
        Step(batch=64, spread=Spread(1, 32, 32)),
        {"q-up": (61, 2, 24576, 1536), "shared-down": (58, 2, 7168, 2048)},
        {"experts": (58, {}, {"num_tokens": 64, "local_num_experts": 8, "num_experts": 256}),
         "all-to-all": (58, {"num_tokens": 2, "num_gpus": 32, "top_k": 8})},
    ),
    # 64 query and 8 KV heads of 64 with biases, 36 layers of 128 experts in MXFP4, every second a window
    "gpt-oss-120b": (
        Step(batch=16, context=4096),
        {"qkv": (36, 16, 5120, 2880), "o": (36, 16, 2880, 4096)},
        {"experts": (36, {"fp4_mode": "mxfp4_bf16", "intermediate_size": 2880, "top_k": 4}), "window attention": (18,),
         "attention": (18,), "qkv": (36, {"bias": True})},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_kernels_have_the_sizes_that_are_computed_by_hand(name):
    """How often a kernel runs, m, n and k of products, and parameters of each of its problems; no other has any."""
    step, products, others = BY_HAND[name]
    found = {kernel.name: kernel for kernel in kernels.of_step(shipped.model(name.partition(" ")[0]), step)}
    assert ("gate-up" in found) == (name in ("llama-3.1-70b", "deepseek-v3", "deepseek-v3 on 32"))
    for kernel, wanted in products.items():
        problem = found[kernel].problems[0]
        assert (found[kernel].count, *(problem[size] for size in "mnk")) == wanted
    for kernel, (count, *parameters) in others.items():
        assert (found[kernel].count, len(found[kernel].problems)) == (count, len(parameters))
        for problem, wanted in zip(found[kernel].problems, parameters, strict=True):
            assert {parameter: problem[parameter] for parameter in wanted} == wanted


def test_a_checkpoint_has_the_products_of_its_type():
    for name, routines in (
        ("qwen3-32b", {"mm_bf16"}),
        ("qwen3-32b-fp8", {"gemm_fp8_nt_groupwise"}),
        ("minimax-m2.5-nvfp4", {"mm_bf16", "cutlass_fused_moe"}),
    ):
        found = kernels.of_step(shipped.model(name), Step())
        assert {k.problems[0]["routine"] for k in found if k.name in {"o", "experts"}} == routines


LLAMA = shipped.file_of("llama-3.1-8b")["config"]
DEEPSEEK = shipped.file_of("deepseek-v3")["config"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"architectures": ["Gpt5ForCausalLM"]}, "Gpt5ForCausalLM is not described. If its layers are those of one"),
        ({"architectures": ["Gpt5ForCausalLM"]}, "it needs a line in ARCHITECTURES of pytest_flashinfer_perf."),
        ({"architectures": None}, "architectures is missing: LlamaForCausalLM, "),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "wide"}, "hidden_size must be a whole number from 1 to 2147483647, got 'wide'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to 1024"),
        ({"num_key_value_heads": 5}, "num_attention_heads 32 is no multiple of num_key_value_heads 5"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq' is unknown: fp8, "),
        ({"quantization_config": 8}, "quantization_config must be an object, got 8"),
        ({**DEEPSEEK, "routed_scaling_factor": -2}, "routed_scaling_factor must be a positive number, got -2"),
    ],
)
def test_a_config_that_cannot_be_used_is_a_sentence(change, sentence):
    with pytest.raises(ConfigError, match=r"^config\.json: ") as error:
        architectures.describe(Fields({**LLAMA, **change}, "config.json"), "m")
    assert sentence in str(error.value)


@pytest.mark.parametrize("text", [None, "", "[1]", "{", '{"a": ' * 3000, "\x00"])
def test_a_file_that_is_no_config_is_a_sentence(text, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json" if text is not None else "name a config.json, or the folder"):
        architectures.read(tmp_path)


def test_the_quantisation_may_be_in_a_file_beside_the_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    beside = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    first, others = (layer.stored for layer, _ in architectures.read(tmp_path).layers)
    assert (first.mixer, first.dense, others.mixer, others.dense) == ("bf16", "fp8", "fp8", "fp8")


@pytest.mark.parametrize(
    ("folder", "file", "read", "name"),
    [
        ("My model::v1.5 [x]", "config.json", "", "My-model-v1.5-x"),
        ("My model::v1.5 [x]", "config.json", "config.json", "My-model-v1.5-x"),
        ("configs", "llama-3.2-3b.json", "llama-3.2-3b.json", "llama-3.2-3b"),
    ],
)
def test_a_model_is_called_as_its_folder_or_its_file_in_words_of_an_id(folder, file, read, name, tmp_path):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_text(json.dumps(LLAMA), encoding="utf-8-sig")  # some editors begin files with it
    assert architectures.read(tmp_path / folder / read).name == name


def understood(text):
    """Whether a step can be made of it; what cannot is an error with one sentence."""
    try:
        kernels.of_step(architectures.describe(config_json.parse(text, "config.json"), "m"), Step(spread=Spread(2)))
    except (ConfigError, UnevenError):
        return False
    return True


def test_500_mutations_are_understood_or_refused_with_a_sentence():
    rand = random.Random(0)
    texts = [json.dumps(shipped.file_of(name)["config"]) for name in shipped.names()]
    outcomes = [understood(mutated(rand, rand.choice(texts), rand.randint(1, 3))) for _ in range(500)]
    assert set(outcomes) == {True, False}
