"""The storage type of each tensor, compared with values recorded from llama.cpp."""

from __future__ import annotations

import pytest
from rdrr_converter.recipes import RECIPES, choose_dtype, choose_tail_dtype, use_more_bits
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout

Q4_K_M = RECIPES["q4_k_m"]


@pytest.mark.parametrize(
    ("layers", "more"),
    [
        # Recorded from llama_model_quantize on synthetic models of 16 and 22 layers.
        (16, [0, 1, 4, 7, 10, 13, 14, 15]),
        (22, [0, 1, 4, 7, 10, 13, 16, 19, 20, 21]),
        # From the formula in C: with fewer than eight layers the first eighth is empty.
        (6, [2, 5]),
        (1, [0]),
    ],
)
def test_the_layers_with_more_bits_are_those_of_llama_cpp(layers, more):
    assert [layer for layer in range(layers) if use_more_bits(layer, layers)] == more


def dtype_of(recipe, role, name, layer=None, tied=False):
    return choose_dtype(recipe, role, name, layer, 16, tied=tied)[0].name


@pytest.mark.parametrize(
    ("role", "part", "layer", "tied", "expected"),
    [
        ("embedding", "model.embed_tokens.weight", None, False, "Q4_K"),
        ("embedding", "model.embed_tokens.weight", None, True, "Q6_K"),
        ("lm_head", "lm_head.weight", None, False, "Q6_K"),
        ("matmul", "model.layers.0.self_attn.v_proj.weight", 0, False, "Q6_K"),
        ("matmul", "model.layers.2.self_attn.v_proj.weight", 2, False, "Q4_K"),
        ("matmul", "model.layers.1.mlp.down_proj.weight", 1, False, "Q6_K"),
        ("matmul", "model.layers.3.mlp.down_proj.weight", 3, False, "Q4_K"),
        ("matmul", "model.layers.0.self_attn.q_proj.weight", 0, False, "Q4_K"),
        ("matmul", "model.layers.0.self_attn.o_proj.weight", 0, False, "Q4_K"),
        ("matmul", "model.layers.0.mlp.gate_up_proj.weight", 0, False, "Q4_K"),
        ("norm", "model.layers.0.input_layernorm.weight", 0, False, "F32"),
        ("bias", "model.layers.0.self_attn.v_proj.bias", 0, False, "F32"),
    ],
)
def test_q4_k_m_is_the_mix_of_llama_cpp(role, part, layer, tied, expected):
    assert dtype_of(Q4_K_M, role, part, layer, tied) == expected


@pytest.mark.parametrize("part", ["v_proj", "qkv_proj"])
def test_q4_k_s_gives_values_of_four_layers_and_an_eighth_of_the_down_projections_q5_k(part):
    recipe = RECIPES["q4_k_s"]
    values = [dtype_of(recipe, "matmul", f"x.self_attn.{part}.weight", at) for at in range(16)]
    assert values == ["Q5_K"] * 4 + ["Q4_K"] * 12
    down = [dtype_of(recipe, "matmul", "x.mlp.down_proj.weight", at) for at in range(16)]
    assert down == ["Q5_K"] * 2 + ["Q4_K"] * 14
    assert dtype_of(recipe, "lm_head", "lm_head.weight") == "Q6_K"


@pytest.mark.parametrize(
    ("name", "base", "more"),
    [
        ("q5_k_m", "Q5_K", "Q6_K"),
        ("q5_k_s", "Q5_K", "Q5_K"),
        ("q6_k", "Q6_K", "Q6_K"),
        ("q4_0", "Q4_0", "Q4_0"),
        ("q5_0", "Q5_0", "Q5_0"),
    ],
)
def test_the_other_mixes_are_those_of_llama_cpp(name, base, more):
    recipe = RECIPES[name]
    assert dtype_of(recipe, "matmul", "x.self_attn.q_proj.weight", 0) == base
    assert dtype_of(recipe, "matmul", "x.self_attn.v_proj.weight", 0) == more
    assert dtype_of(recipe, "matmul", "x.mlp.down_proj.weight", 15) == more
    assert dtype_of(recipe, "matmul", "x.mlp.down_proj.weight", 2) == base
    assert dtype_of(recipe, "lm_head", "lm_head.weight") == "Q6_K"


@pytest.mark.parametrize(("experts", "key", "out"), [(0, "Q4_K", "Q4_K"), (8, "Q8_0", "Q5_K")])
def test_attention_gets_more_bits_in_models_with_eight_experts(experts, key, out):
    def found(recipe, part):
        name = f"x.self_attn.{part}.weight"
        chosen = choose_dtype(RECIPES[recipe], "matmul", name, 2, 16, tied=False, experts=experts)
        return chosen[0].name

    assert (found("q4_k_m", "k_proj"), found("q4_k_s", "o_proj")) == (key, out)
    assert found("q5_k_m", "o_proj") == "Q5_K"
    assert found("q4_k_m", "q_proj") == "Q4_K"


def test_q8_0_keeps_the_values_of_encoders_in_f16():
    def type_of(recipe, part, causal):
        name = f"model.layers.3.self_attn.{part}.weight"
        return choose_dtype(RECIPES[recipe], "matmul", name, 3, 6, tied=True, causal=causal)[0].name

    assert type_of("q8_0", "v_proj", False) == "F16"
    assert type_of("q8_0", "v_proj", True) == type_of("q8_0", "k_proj", False) == "Q8_0"
    assert type_of("q4_0", "v_proj", False) == "Q4_0"


@pytest.mark.parametrize(
    ("layers", "grouped", "expected"), [(80, True, "Q5_K"), (80, False, "Q4_K"), (32, True, "Q4_K")]
)
def test_shared_value_heads_of_eighty_layers_get_q5_k(layers, grouped, expected):
    chosen = choose_dtype(
        Q4_K_M, "matmul", "x.self_attn.v_proj.weight", 11, layers, tied=False, grouped=grouped
    )
    assert chosen[0].name == expected


@pytest.mark.parametrize(("name", "dtype"), [("q8_0", "Q8_0"), ("f16", "F16"), ("f32", "F32")])
def test_plain_recipes_use_one_type_and_leave_norms_and_biases_alone(name, dtype):
    recipe = RECIPES[name]
    for role in ("embedding", "lm_head", "matmul"):
        assert dtype_of(recipe, role, "model.layers.0.mlp.down_proj.weight", 0) == dtype
    for role in ("norm", "bias"):
        assert dtype_of(recipe, role, "model.layers.0.x.weight", 0) == "F32"


def tail(dtype, shape, how, layout=Layout.ROW):
    return choose_tail_dtype(DTYPES[dtype], shape, layout, how)[0].name


def test_rows_of_whole_blocks_keep_their_type_for_every_k_tail():
    for how in ("pad", "ggml", "auto"):
        assert tail("Q4_K", (8, 512), how) == "Q4_K"


def test_k_tail_ggml_uses_the_fallback_types_of_llama_cpp():
    assert tail("Q4_K", (8, 288), "pad") == "Q4_K"
    assert tail("Q4_K", (8, 288), "ggml") == "Q5_0"
    assert tail("Q6_K", (8, 288), "ggml") == "Q8_0"
    assert tail("Q5_K", (8, 288), "ggml") == "Q5_1"
    assert tail("Q4_K", (8, 280), "ggml") == "F16"
    assert tail("Q8_0", (8, 280), "ggml") == "Q8_0"


def test_k_tail_auto_uses_the_type_with_fewer_bytes():
    # 288 weights: two Q4_K blocks are 288 bytes, nine Q5_0 blocks 198; 480 weights: 288 and 330.
    assert tail("Q4_K", (8, 288), "auto") == "Q5_0"
    assert tail("Q4_K", (8, 480), "auto") == "Q4_K"


def test_k_tail_looks_at_the_length_of_the_stored_row():
    assert tail("Q4_K", (288, 512), "ggml") == "Q4_K"
    assert tail("Q4_K", (288, 512), "ggml", Layout.COLUMN) == "Q5_0"
    assert tail("Q4_K", (288, 512), "ggml", Layout.FLAT) == "Q4_K"


def test_mixtrals_name_of_the_down_projection_is_known():
    name = "model.layers.0.block_sparse_moe.experts.3.{}.weight"
    chosen = [
        choose_dtype(RECIPES["q4_k_m"], "expert", name.format(part), 0, 8, tied=False, experts=4)[
            0
        ].name
        for part in ("w1", "w2", "w3")
    ]
    assert chosen == ["Q4_K", "Q6_K", "Q4_K"]
