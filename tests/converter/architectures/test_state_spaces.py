"""Configurations of models with state spaces: defaults, limits of steps, and what is refused."""

from __future__ import annotations

import math

import pytest
from rdrr_converter.architectures import ARCHITECTURES, read_block
from rdrr_converter.architectures._state_space import step_limits
from rdrr_converter.architectures.config import Flag
from rdrr_format.errors import SourceError

BY_NAME = {rule.name: rule for rule in ARCHITECTURES}
BLOCKS = (
    "attention",
    "normalization",
    "ffn",
    "output",
    "experts",
    "sizes",
    "pattern",
    "state_space",
    "dimensions",
)
NAMES = ("falcon_h1", "granitemoehybrid", "mamba2")


@pytest.mark.parametrize("name", NAMES)
def test_absent_keys_have_the_defaults_of_transformers(name):
    from transformers import AutoConfig

    rule = BY_NAME[name]
    bare = rule.config({}, "config.json")
    full = rule.config(AutoConfig.for_model(name).to_dict(), "config.json")
    for block in BLOCKS:
        fields = getattr(rule, block) or {}
        assert read_block(fields, bare) == read_block(fields, full)
    assert rule.rope(bare) == rule.rope(full)
    assert rule.layer_types(bare) == rule.layer_types(full)
    flags = {row.required.key for row in rule.tensors if isinstance(row.required, Flag)}
    assert {key: bare.flag(key) for key in flags} == {key: full.flag(key) for key in flags}
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
        assert bare.integer(key) == full.integer(key)


@pytest.mark.parametrize(
    "stated",
    [
        {"attention_in_multiplier": 0.5, "attention_bias": True},
        {"ssm_in_multiplier": 0.5, "mamba_proj_bias": True},
        {"ssm_multipliers": [1.0, 2.0]},
        {"mlp_multipliers": [1.0, "2"]},
    ],
)
def test_factors_that_the_blocks_cannot_hold_are_refused(stated):
    rule = BY_NAME["falcon_h1"]
    config = rule.config(stated, "config.json")
    with pytest.raises(SourceError, match="multiplier"):
        [read_block(getattr(rule, name), config) for name in ("attention", "ffn", "state_space")]


@pytest.mark.parametrize(
    ("stated", "limits"),
    [
        (None, (0.0, None)),
        ([0.0, math.inf], (0.0, None)),
        ([0.0, {"__float__": "Infinity"}], (0.0, None)),
        ([0.001, 0.1], (0.001, 0.1)),
        ((0, 2), (0.0, 2.0)),
    ],
)
def test_the_limits_of_steps_are_read(stated, limits):
    config = BY_NAME["mamba2"].config({"time_step_limit": stated}, "config.json")
    assert step_limits(config) == limits


@pytest.mark.parametrize("stated", [[1.0], [2.0, 1.0], [-1.0, 1.0], ["a", "b"], 3, [0.0, None]])
def test_limits_that_are_none_are_refused(stated):
    config = BY_NAME["mamba2"].config({"time_step_limit": stated}, "config.json")
    with pytest.raises(SourceError, match="time_step_limit"):
        step_limits(config)


@pytest.mark.parametrize(
    "stated",
    [
        {"num_heads": 100},
        {"head_dim": 32},
        {"hidden_act": "gelu"},
        {"intermediate_size": 4096},
        {"expand": 1.00001},
    ],
)
def test_sizes_that_do_not_fit_and_other_activations_are_refused(stated):
    rule = BY_NAME["mamba2"]
    with pytest.raises(SourceError, match="cannot be used"):
        rule.inner(rule.config(stated, "config.json"))


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"hybrid_override_pattern": "MX*"},
        {"layers_block_type": ["mamba", "rwkv"]},
        {"hybrid_override_pattern": "M*", "layers_block_type": ["attention", "mamba"]},
    ],
)
def test_layers_that_are_not_known_or_differ_are_refused(stated):
    config = BY_NAME["nemotron_h"].config(stated, "config.json")
    with pytest.raises(SourceError, match="cannot be used"):
        BY_NAME["nemotron_h"].layer_types(config)
