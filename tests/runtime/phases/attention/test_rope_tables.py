"""Tests of the rope tables against the rope initialisation of transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rdrr_format.errors import ManifestError
from rdrr_manifests.graph import RopeSpec
from rdrr_runtime.phases.attention import rope_tables as rope
from rdrr_runtime.phases.attention.rope_tables import (
    attention_factor,
    axes_of_pairs,
    frequencies,
    rope_bytes,
    rope_rows,
    rope_table,
)
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CONTEXT = 4096
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


def theirs(parameters: dict) -> tuple[np.ndarray, float]:
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_theta": 10000.0, **parameters},
    )
    inverse, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    return inverse.double().numpy(), factor


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ({"scaling": "linear", "factor": 8.0}, {"rope_type": "linear", "factor": 8.0}),
        (
            {
                "scaling": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_pos": 512,
            },
            LLAMA3,
        ),
        ({"scaling": "yarn", "factor": 4.0, "original_max_pos": 1024}, YARN),
    ],
    ids=["linear", "llama3", "yarn"],
)
def test_scaled_frequencies_equal_those_of_transformers(spec: dict, parameters: dict) -> None:
    ours = RopeSpec(theta=10000.0, head_dim=64, rotary_dim=64, **spec)
    inverse, factor = theirs(parameters)
    np.testing.assert_allclose(frequencies(ours, CONTEXT), inverse, rtol=2e-6)
    assert attention_factor(ours, CONTEXT) == pytest.approx(factor)
    # Control: scaling changes something, so equality is not vacuous.
    plain = RopeSpec(theta=10000.0, head_dim=64, rotary_dim=64)
    assert not np.allclose(frequencies(plain, CONTEXT), inverse, rtol=1e-3)


def test_a_table_holds_the_cosine_and_sine_of_position_times_frequency(
    rng: np.random.Generator,
) -> None:
    theta = float(rng.uniform(1e3, 1e6))
    table = rope_table(RopeSpec(theta=theta, head_dim=96, rotary_dim=48), 2000)
    position, pair = int(rng.integers(2000)), int(rng.integers(24))
    angle = position * theta ** (-2 * pair / 48)
    assert table.shape == (2000, 24, 2)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table[position, pair], [np.cos(angle), np.sin(angle)], atol=1e-6)


def test_a_table_does_not_depend_on_how_many_positions_are_computed_at_once(monkeypatch) -> None:
    spec = RopeSpec(theta=1e4, head_dim=16, rotary_dim=8, scaling="linear", factor=4.0)
    whole = rope_table(spec, 1000)
    assert whole.nbytes == rope_bytes(spec, 1000)
    monkeypatch.setattr(rope, "POSITIONS", 7)
    np.testing.assert_array_equal(rope_table(spec, 1000), whole)


def test_longrope_takes_the_long_factors_only_beyond_the_original_context() -> None:
    spec = RopeSpec(
        theta=1e4,
        head_dim=8,
        rotary_dim=8,
        scaling="longrope",
        factor=4.0,
        original_max_pos=1024,
        short_factor=(1.0, 1.0, 1.0, 1.0),
        long_factor=(1.0, 2.0, 3.0, 4.0),
    )
    short, long = frequencies(spec, 1024), frequencies(spec, 1025)
    np.testing.assert_allclose(short / long, [1.0, 2.0, 3.0, 4.0])
    usual = np.sqrt(1.0 + np.log(4.0) / np.log(1024))
    assert [attention_factor(spec, context) for context in (1024, 1025)] == [usual, usual]
    stated = replace(spec, attention_factor=1.2, long_attention_factor=1.3)
    assert [attention_factor(stated, context) for context in (1024, 1025)] == [1.2, 1.3]
    np.testing.assert_allclose(rope_table(stated, 1025)[0, :, 0], 1.3)


def test_a_scaling_without_its_parameters_is_refused() -> None:
    spec = RopeSpec(theta=1e4, head_dim=8, rotary_dim=8, scaling="llama3", factor=8.0)
    with pytest.raises(ManifestError, match="low_freq_factor"):
        frequencies(spec, 64)


def test_sections_rotate_pairs_by_time_height_and_width() -> None:
    spec = RopeSpec(theta=10000.0, head_dim=16, rotary_dim=16, sections=(3, 3, 2))
    assert axes_of_pairs(spec).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    alternating = replace(spec, sections=(4, 2, 2), sections_alternate=True)
    assert axes_of_pairs(alternating).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    assert axes_of_pairs(replace(spec, sections=None)).tolist() == [0] * 8


@pytest.mark.parametrize("alternate", [False, True])
def test_rows_of_three_equal_positions_are_those_of_the_table(alternate: bool) -> None:
    spec = RopeSpec(theta=10000.0, head_dim=16, rotary_dim=16, sections=(4, 2, 2))
    spec = replace(spec, sections_alternate=alternate)
    rows = rope_rows(spec, 32, np.repeat(np.arange(32)[:, None], 3, axis=1))
    assert np.array_equal(rows, rope_table(spec, 32))
    assert not rope_table(spec, 32, 2)[32:].any()
