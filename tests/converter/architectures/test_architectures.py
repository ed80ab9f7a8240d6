"""Configurations of both forms give the blocks that transformers computes with."""

from __future__ import annotations

import pytest
from rdrr_converter.architectures import ARCHITECTURES, find_architecture, read_block
from rdrr_converter.architectures._aliases import ALIASES, plain_name
from rdrr_converter.architectures.config import Flag
from rdrr_converter.architectures.layers import layer_pattern
from rdrr_format.errors import ConversionError, SourceError, UsageError
from support.configurations import BY_NAME, FULL, SLIDING, config_of, transformers_config

OLDER = (
    "cohere",
    "cohere2",
    "falcon",
    "gpt2",
    "gpt_neox",
    "nemotron",
    "opt",
    "phi",
    "stablelm",
    "starcoder2",
)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "llama"),
        ({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}, "gemma3"),
        ({"architectures": None, "model_type": "qwen2"}, "qwen2"),
        ({"model_type": "gemma3_text"}, "gemma3"),
        ({"architectures": ["SomethingElse", "Qwen3ForCausalLM"]}, "qwen3"),
        ({"architectures": ["MistralForCausalLM"], "model_type": "unheard"}, "mistral"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}, "gemma3"),
        ({"architectures": ["WeDLMForCausalLM"], "model_type": "wedlm"}, "wedlm"),
        ({"model_type": "qwen3_vl_text"}, "qwen3_vl"),
        ({"architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "qwen2_vl"),
        ({"model_type": "TinyLlama"}, "llama"),
        ({"architectures": ["Qwen3ForSequenceClassification"], "model_type": "qwen3"}, "qwen3"),
        ({"architectures": ["GPT2ForSequenceClassification"], "model_type": "gpt2"}, "gpt2"),
        (
            {"architectures": ["Gemma3TextForSequenceClassification"]},
            "gemma3",
        ),
    ],
)
def test_an_architecture_is_found_by_its_class_or_else_by_its_model_type(config, name):
    assert find_architecture(config).name == name


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"architectures": ["T5EncoderModel"], "model_type": "t5"},
        {"architectures": ["LlamaForQuestionAnswering"], "model_type": "llama"},
        {"architectures": "LlamaForCausalLM"},
        {"model_type": 3},
    ],
)
def test_an_unknown_architecture_is_refused_with_the_command_that_lists_them(config):
    with pytest.raises(ConversionError, match="`rdrr architectures` lists"):
        find_architecture(config)


def test_an_override_wins_and_must_be_known():
    config = {"architectures": ["T5EncoderModel"]}
    assert find_architecture(config, "LLAMA").name == "llama"
    assert find_architecture(config, "Qwen2ForCausalLM").name == "qwen2"
    for alias, name in (
        ("qwen2.5", "qwen2"),
        ("SmolLM2", "llama"),
        ("Yi", "llama"),
        ("phi-4", "phi3"),
        ("DeepSeek-R1-Distill-Qwen", "qwen2"),
    ):
        assert find_architecture(config, alias).name == name
    with pytest.raises(UsageError, match=r"found t5.*`rdrr architectures` lists all"):
        find_architecture(config, "t5")
    with pytest.raises(UsageError, match=r"found lama.*did you mean.*llama"):
        find_architecture(config, "lama")


def test_every_alias_names_an_architecture_and_shadows_none():
    plain = {plain_name(name) for name in BY_NAME}
    for alias, name in ALIASES.items():
        assert name in BY_NAME
        assert alias not in plain


def test_files_are_named_after_their_architecture():
    import importlib

    for rule in ARCHITECTURES:
        module = importlib.import_module(f"rdrr_converter.architectures.{rule.name}")
        assert getattr(module, rule.name.upper()) is rule


_GEMMA4_EXPERTS = {"moe_intermediate_size": 64, "num_experts": 8, "top_k_experts": 2}
WITHOUT_DEFAULTS = {
    "deepseek_v2": {"num_experts_per_tok": 3},
    "deepseek_v3": {"num_key_value_heads": 4},
    "deepseek_v32": {"num_key_value_heads": 4},
    "glm_moe_dsa": {"num_key_value_heads": 4},
    "glm4_moe_lite": {"num_key_value_heads": 4},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3},
    "gemma3n": {"num_kv_shared_layers": 4},
    "gemma4": _GEMMA4_EXPERTS,
    "gemma4_unified": _GEMMA4_EXPERTS,
}
"""Keys for which transformers has no default, or one that does not suit few layers."""


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("llama", "llama"),
        ("mistral", "mistral"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("gemma3", "gemma3_text"),
        ("deepseek_v2", "deepseek_v2"),
        ("deepseek_v3", "deepseek_v3"),
        ("gemma3n", "gemma3n_text"),
        ("gemma4", "gemma4_text"),
        ("gemma4_unified", "gemma4_unified_text"),
        ("dots1", "dots1"),
        ("ernie4_5_moe", "ernie4_5_moe"),
        ("gemma", "gemma"),
        ("gemma2", "gemma2"),
        ("glm4_moe", "glm4_moe"),
        ("gpt_oss", "gpt_oss"),
        ("glm4_moe_lite", "glm4_moe_lite"),
        ("solar_open", "solar_open"),
        ("hunyuan_v1_moe", "hunyuan_v1_moe"),
        ("granite", "granite"),
        ("granitemoe", "granitemoe"),
        ("granitemoeshared", "granitemoeshared"),
        ("llama4_text", "llama4_text"),
        ("minimax_m2", "minimax_m2"),
        ("mixtral", "mixtral"),
        ("olmoe", "olmoe"),
        ("flex_olmo", "flex_olmo"),
        ("phi3", "phi3"),
        ("phimoe", "phimoe"),
        ("qwen2_moe", "qwen2_moe"),
        ("qwen3_moe", "qwen3_moe"),
        ("qwen2_vl", "qwen2_5_vl_text"),
        ("lfm2", "lfm2"),
        ("lfm2_moe", "lfm2_moe"),
        ("lfm3", "lfm3"),
        ("qwen3_5", "qwen3_5_text"),
        ("qwen3_5_moe", "qwen3_5_moe_text"),
        ("qwen3_next", "qwen3_next"),
        ("qwen3_vl", "qwen3_vl_text"),
        ("seed_oss", "seed_oss"),
        ("smollm3", "smollm3"),
        ("vaultgemma", "vaultgemma"),
        *((name, name) for name in OLDER),
        ("glm", "glm"),
        ("glm4", "glm4"),
        ("olmo2", "olmo2"),
        ("olmo3", "olmo3"),
        ("exaone4", "exaone4"),
        ("exaone_moe", "exaone_moe"),
        ("ernie4_5", "ernie4_5"),
        ("hunyuan_v1_dense", "hunyuan_v1_dense"),
        ("helium", "helium"),
        ("internlm3", "internlm3"),
        ("ministral", "ministral"),
        ("ministral3", "ministral3"),
        ("olmo", "olmo"),
        ("apertus", "apertus"),
        ("arcee", "arcee"),
        ("cwm", "cwm"),
        ("deepseek_v32", "deepseek_v32"),
        ("glm_moe_dsa", "glm_moe_dsa"),
        ("glm4v", "glm4v_text"),
        ("glm4v_moe", "glm4v_moe_text"),
        ("granite_swa", "granite_swa"),
        ("iquestcoder", "iquestcoder"),
        ("qwen3_vl_moe", "qwen3_vl_moe_text"),
    ],
)
def test_absent_keys_have_the_defaults_of_transformers(name, model_type):
    rule = BY_NAME[name]
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "vocab_size": 300,
        **WITHOUT_DEFAULTS.get(name, {}),
    }
    whole = transformers_config(model_type, **sizes).to_dict()
    whole |= {"intermediate_size": 512} if name in ("falcon", "gpt2", "opt") else {}
    bare, full = config_of(name, sizes), config_of(name, whole)
    for name_of_block in (
        "attention",
        "normalization",
        "ffn",
        "output",
        "experts",
        "sizes",
        "pattern",
    ):
        block = getattr(rule, name_of_block) or {}
        ours, theirs = read_block(block, bare), read_block(block, full)
        if SLIDING not in rule.layer_types(full):  # without such layers the window is unused
            ours.pop("sliding_window", None)
            theirs.pop("sliding_window", None)
        assert ours == theirs
    assert rule.rope(bare) == rule.rope(full)
    assert rule.layer_types(bare) == rule.layer_types(full)
    flags = {row.required.key for row in rule.tensors if isinstance(row.required, Flag)}
    assert {key: bare.flag(key) for key in flags} == {key: full.flag(key) for key in flags}
    for key in ("max_position_embeddings", "tie_word_embeddings"):
        assert bare.get(key) == (full.get(key) or False)
    if name != "llama":  # as many key/value heads as query heads, stated or not
        assert bare.head_dim == full.head_dim
    assert bare.integer("num_attention_heads") == full.integer("num_attention_heads")


def layers_of(name, **values):
    return BY_NAME[name].layer_types(config_of(name, {"num_hidden_layers": 8, **values}))


def test_gemma_layers_follow_the_pattern_in_both_forms():
    expected = transformers_config("gemma3_text", num_hidden_layers=8).layer_types
    assert list(layers_of("gemma3")) == expected
    assert list(layers_of("gemma3", sliding_window_pattern=6)) == expected
    assert list(layers_of("gemma3", layer_types=expected)) == expected
    short = transformers_config("gemma3_text", num_hidden_layers=8, sliding_window_pattern=3)
    assert list(layers_of("gemma3", sliding_window_pattern=3)) == short.layer_types


def test_qwen_layers_have_a_sliding_window_only_if_it_is_switched_on():
    values = {"sliding_window": 128, "max_window_layers": 5}
    assert layers_of("qwen2", **values) == (FULL,) * 8
    used = {**values, "use_sliding_window": True}
    assert list(layers_of("qwen2", **used)) == (
        transformers_config("qwen2", num_hidden_layers=8, **used).layer_types
    )
    assert layers_of("qwen3", **used) == (FULL,) * 5 + (SLIDING,) * 3
    # Qwen 2 with experts reads the same keys in another way.
    assert layers_of("qwen2_moe", **values) == (FULL,) * 8
    for end in (4, 5):
        used["max_window_layers"] = end
        assert list(layers_of("qwen2_moe", **used)) == (
            transformers_config("qwen2_moe", num_hidden_layers=8, **used).layer_types
        )


def test_mistral_has_a_sliding_window_in_every_layer_or_in_none():
    assert layers_of("mistral") == (SLIDING,) * 8
    assert layers_of("mistral", sliding_window=None) == (FULL,) * 8


@pytest.mark.parametrize(
    ("values", "dense"),
    [
        ({}, 1),
        ({"first_k_dense_replace": 2}, 2),
        ({"first_last_k_dense_replace": 2}, 2),
        ({"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5, "first_k_dense_replace": 1}, 3),
        ({"is_moe_layer": [False] + [True] * 7}, 1),
    ],
)
def test_exaone_says_in_four_ways_which_layers_are_dense(values, dense):
    config = config_of("exaone_moe", {"num_hidden_layers": 8, **values})
    rows = [row for row in BY_NAME["exaone_moe"].tensors if row.name.endswith(".mlp.gate.weight")]
    assert [row.layers(config) for row in rows] == [tuple(range(dense, 8))]
    with pytest.raises(SourceError, match="is_moe_layer"):
        rows[0].layers(config_of("exaone_moe", {**config.values, "is_moe_layer": [True] * 8}))


def test_granite_may_have_one_rope_base_for_each_kind_of_layer():
    rope = BY_NAME["granite_swa"].rope
    sizes = {"num_hidden_layers": 4, "rope_theta": 500.0}

    def fields(*bases, **more):
        found = rope(config_of("granite_swa", {**sizes, "layer_rope_theta": list(bases), **more}))
        keys = ("rope_theta", "rope_local_theta", "unrotated_layers")
        return tuple(found.get(key) for key in keys)

    assert fields(7.0, 7.0, 7.0, 7.0) == (7.0, None, None)
    assert fields(7.0, 9.0, 9.0, 0) == (7.0, 9.0, (3,))
    assert fields(0, 9.0, 9.0, 9.0) == (9.0, None, (0,))
    assert fields(0, 0, 0, 0) == (500.0, None, (0, 1, 2, 3))
    with pytest.raises(ConversionError, match="layer_rope_theta"):
        fields(7.0, 9.0, 8.0, 9.0)
    with pytest.raises(SourceError, match="layer_rope_theta"):
        fields(7.0, 9.0, 9.0)


def test_minimax_with_another_type_of_attention_is_refused():
    assert layers_of("minimax_m2", attn_type_list=[1] * 8) == (FULL,) * 8
    with pytest.raises(SourceError, match="attn_type_list"):
        layers_of("minimax_m2", attn_type_list=[0] + [1] * 7)


@pytest.mark.parametrize("types", [["full_attention"], ["odd"] * 8, "full_attention", [1] * 8])
def test_invalid_layer_types_are_refused(types):
    with pytest.raises(SourceError, match="layer_types"):
        layers_of("gemma3", layer_types=types)


@pytest.mark.parametrize(
    ("types", "pattern"),
    [
        ("ffff", {"type": "uniform"}),
        ("ssss", {"type": "uniform"}),
        ("sssfsss", {"type": "every_n", "period": 4, "offset": 3}),
        ("sfsfs", {"type": "every_n", "period": 2, "offset": 1}),
        ("ffss", {"type": "custom", "layer_types": (FULL, FULL, SLIDING, SLIDING)}),
        ("sfsss", {"type": "custom"}),
    ],
)
def test_the_layer_pattern_is_the_shortest_description_of_the_types(types, pattern):
    names = tuple(FULL if letter == "f" else SLIDING for letter in types)
    counts = layer_pattern(names)
    assert {key: counts[key] for key in pattern} == pattern


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", 0),
        ("hidden_size", -3),
        ("hidden_size", "256"),
        ("hidden_size", True),
        ("hidden_size", 2.5),
    ],
)
def test_a_size_that_is_not_a_positive_whole_number_is_refused_by_name(key, value):
    with pytest.raises(SourceError, match=key):
        config_of("llama", {key: value}).integer(key)
    assert config_of("llama", {key: 256}).integer(key) == 256


def test_the_head_dimension_is_stated_or_derived_from_the_hidden_size():
    sizes = {"hidden_size": 576, "num_attention_heads": 9}
    assert config_of("llama", sizes).head_dim == 64
    assert config_of("llama", {**sizes, "head_dim": None}).head_dim == 64
    assert config_of("llama", {**sizes, "head_dim": 32}).head_dim == 32
    with pytest.raises(SourceError, match="multiple of 7 heads"):
        _ = config_of("llama", {**sizes, "num_attention_heads": 7}).head_dim


def test_an_activation_that_the_format_cannot_express_is_refused():
    assert read_block(BY_NAME["llama"].ffn, config_of("llama", {})) == {"activation": "silu"}
    with pytest.raises(ConversionError, match="relu6"):
        read_block(BY_NAME["llama"].ffn, config_of("llama", {"hidden_act": "relu6"}))


def test_the_exact_gelu_is_told_from_the_tanh_form_which_the_manifest_calls_gelu():
    names = {"gelu": "gelu_erf", "gelu_new": "gelu", "gelu_fast": "gelu", "relu2": "relu2"}
    for theirs, ours in names.items():
        config = config_of("llama", {"hidden_act": theirs})
        assert read_block(BY_NAME["llama"].ffn, config) == {"activation": ours}


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("qwen3_next", {"hidden_act": "gelu"}, {"hidden_act": "swish"}),
        ("qwen3_5", {"hidden_act": "relu"}, {"hidden_act": "silu"}),
        ("qwen3_5_moe", {"hidden_act": "gelu"}, {}),
        ("llama4_text", {"no_rope_layers": [0] * 4}, {"no_rope_layers": [1, 0, 0, 0]}),
        ("llama4_text", {"no_rope_layer_interval": 1}, {"no_rope_layer_interval": 2}),
        ("phimoe", {"num_experts_per_tok": 1}, {"num_experts_per_tok": 2}),
        ("phimoe", {"num_experts_per_tok": 3}, {}),
        ("lfm3", {"use_attention_gate": False}, {"use_attention_gate": True}),
        ("lfm3", {"use_sandwich_norm": False}, {"use_sandwich_norm": True}),
        *(
            (name, {"layer_types": types, "sliding_window": 8}, {"layer_types": others})
            for name in ("smollm3", "qwen2_moe")
            for types, others in [(["sliding_attention"] * 4, ["full_attention"] * 4)]
        ),
    ],
)
def test_what_a_family_cannot_compute_is_refused_and_not_ignored(name, wrong, right):
    rule = BY_NAME[name]

    def read(stated):
        config = config_of(name, {"num_hidden_layers": 4, **stated})
        return (
            read_block(rule.ffn, config),
            read_block(rule.experts or {}, config),
            rule.layer_types(config),
        )

    with pytest.raises(SourceError, match=f"{next(iter(wrong))}|no_rope_layers"):
        read(wrong)
    read(right)
