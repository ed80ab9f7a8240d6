"""Rope of configurations in both forms is that of transformers, or is refused."""

from __future__ import annotations

import math

import pytest
from rdrr_format.errors import ConversionError, SourceError
from support.configurations import FULL, SLIDING, rope_of, transformers_config

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("older", "newer", "fields"),
    [
        (
            {"rope_theta": 5e5},
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
            {"rope_theta": 5e5},
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}},
            {"rope_theta": 1e4, "rope_scaling_type": "linear", "rope_scaling_factor": 4.0},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}},
            {
                "rope_theta": 5e5,
                "rope_scaling_type": "llama3",
                "rope_scaling_factor": 8.0,
                "llama3_low_freq_factor": 1.0,
                "llama3_high_freq_factor": 4.0,
                "llama3_original_max_pos": 8192,
            },
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 4096},
            {
                "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "attention_factor": None},
                "max_position_embeddings": 4096,
            },
            {
                "rope_theta": 1e4,
                "rope_scaling_type": "yarn",
                "rope_scaling_factor": 4.0,
                "yarn_beta_fast": 32.0,
                "yarn_beta_slow": 1.0,
                "yarn_original_max_pos": 4096,
            },
        ),
        (
            {
                "rope_scaling": {"type": "su", "short_factor": [1, 1.5], "long_factor": [2, 3.5]},
                "original_max_position_embeddings": 512,
                "max_position_embeddings": 4096,
            },
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "factor": 8.0,
                    "short_factor": [1.0, 1.5],
                    "long_factor": [2.0, 3.5],
                    "original_max_position_embeddings": 512,
                    "attention_factor": 1.1547005383792515,
                },
            },
            {
                "rope_theta": 1e4,
                "rope_scaling_type": "longrope",
                "rope_scaling_factor": 8.0,
                "longrope_short_factor": (1.0, 1.5),
                "longrope_long_factor": (2.0, 3.5),
                "longrope_original_max_pos": 512,
            },
        ),
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
            {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}},
            {"rope_theta": 1e4, "mrope_section": (16, 24, 24), "mrope_interleaved": False},
        ),
        ({"rope_scaling": None}, {"rope_parameters": None}, {"rope_theta": 1e4}),
    ],
)
def test_the_older_and_the_newer_form_of_rope_are_read_alike(older, newer, fields):
    for values in (older, newer):
        assert {k: v for k, v in rope_of("llama", values).items() if v is not None} == fields


@pytest.mark.parametrize(
    "values",
    [
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.75},
    ],
)
def test_only_architectures_that_rotate_a_part_of_the_head_in_transformers_do_so(values):
    assert rope_of("phi3", values)["partial_rotary_factor"] == 0.5
    assert "partial_rotary_factor" not in rope_of("llama", values)


def test_two_forms_of_rope_that_contradict_each_other_are_refused():
    linear = {"rope_type": "linear", "factor": 4.0}
    values = {"rope_scaling": linear, "rope_parameters": {"rope_theta": 1e4, **linear}}
    assert rope_of("llama", values)["rope_scaling_factor"] == 4.0
    with pytest.raises(SourceError, match=r"rope_scaling\.factor.*2\.0"):
        rope_of("llama", {**values, "rope_scaling": {**linear, "factor": 2.0}})


@pytest.mark.parametrize("kind", ["proportional", "default"])
def test_lfm3_rotates_half_of_a_head_in_full_attention_under_both_names(kind):
    full = {"rope_type": kind, "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    stated = {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
    expected = {"rope_theta": 1e6, "rope_local_theta": 1e4}
    half = expected | {"partial_rotary_factor": 0.5, "rope_frequency_base_dim": 128}
    assert rope_of("lfm3", {"rope_parameters": stated}) == rope_of("lfm3", {}) == half
    full["partial_rotary_factor"] = 1.0
    assert rope_of("lfm3", {"rope_parameters": stated}) == expected


def test_gemma_has_two_rope_bases_in_both_forms():
    older = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    scaled = {"rope_type": "linear", "factor": 8.0}
    newer = {
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 1e6},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    expected = {"rope_theta": 1e6, "rope_local_theta": 1e4}
    for values in ({}, older, newer):
        rope = rope_of("gemma3", values)
        assert {k: v for k, v in rope.items() if v is not None} == expected
    # In the older form, rope_scaling applies to the global layers only.
    rope = rope_of("gemma3", {**older, "rope_scaling": scaled})
    assert rope["rope_scaling_type"] == "linear"
    assert rope["rope_scaling_factor"] == 8.0
    assert "rope_local_scaling_type" not in rope


FACTORS = {"factor": 2.0, "short_factor": [1.0, 1.0], "long_factor": [2.0, 3.5]}


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "spiral", "factor": 2.0},
        {"rope_type": "longrope", **FACTORS, "attention_factor": 3.0},
        {"rope_type": "longrope", **FACTORS, "short_mscale": 1.1},
    ],
)
def test_rope_scaling_that_the_format_cannot_express_is_refused(scaling):
    with pytest.raises(ConversionError):
        rope_of("llama", {"rope_scaling": scaling})


def test_dynamic_scaling_is_none_within_the_context_of_the_package():
    block = rope_of("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert block == rope_of("llama", {})


def test_yarn_with_the_papers_attention_factor_is_accepted():
    scaling = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.138629436111989}
    values = {"rope_scaling": scaling, "max_position_embeddings": 4096}
    assert rope_of("llama", values)["rope_scaling_type"] == "yarn"
    assert "yarn_attention_factor" not in rope_of("llama", values)


@pytest.mark.parametrize(
    "more",
    [
        {"mscale": 1.0, "mscale_all_dim": 0.5},
        {"mscale": 0.707, "mscale_all_dim": 0.707},
        {"mscale": 0.707},
        {"mscale": 0.707, "mscale_all_dim": 0},
        {"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 0.5},
    ],
)
def test_the_attention_factor_of_yarn_is_that_of_transformers(more):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "yarn", "factor": 40.0, **more}
    scaling |= {"rope_theta": 1e4, "original_max_position_embeddings": 4096}
    rope = rope_of("llama", {"rope_parameters": scaling})
    whole = transformers_config("llama", rope_parameters=dict(scaling))
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](whole, "cpu")
    usual = 0.1 * math.log(40.0) + 1.0
    assert rope.get("yarn_attention_factor", usual) == pytest.approx(factor)


@pytest.mark.parametrize(
    "values",
    [
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "longrope", "factor": 2.0}},
        {"rope_scaling": {"type": "longrope", **FACTORS, "short_factor": [1.0, 0.0]}},
        {"rope_scaling": {"mrope_section": 8}},
        {"rope_scaling": {"type": "linear", "factor": "4"}},
        {"rope_scaling": {"type": "linear", "factor": -1}},
        {"rope_scaling": "linear"},
        {"rope_parameters": [1]},
        {"rope_theta": 0},
        {"rope_theta": True},
    ],
)
def test_a_rope_with_a_missing_or_invalid_number_is_refused(values):
    with pytest.raises(SourceError):
        rope_of("llama", values)


@pytest.mark.parametrize(
    "values",
    [
        {"rotary_dim": 64},
        {"partial_rotary_factor": 0.5},
        {"rotary_dim": 64, "partial_rotary_factor": 0.5},
        {"rotary_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.5}},
    ],
)
def test_minimax_says_in_two_ways_how_much_of_a_head_rotates(values):
    theirs = transformers_config("minimax_m2", **values).rope_parameters
    assert rope_of("minimax_m2", values)["partial_rotary_factor"] == 0.5
    assert theirs["partial_rotary_factor"] == 0.5
    assert rope_of("minimax_m2", {})["partial_rotary_factor"] is None
    with pytest.raises(SourceError, match="rotary_dim"):
        rope_of("minimax_m2", {"rotary_dim": 32, "partial_rotary_factor": 0.5})
