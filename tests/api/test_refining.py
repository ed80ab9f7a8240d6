"""What a method of `quality` gets: a draft whose stored bytes it may replace, and its source."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr._refining import Draft, refine
from rdrr_converter.convert import convert
from support.safetensor_files import llama_tensors, write_llama

FUSED = "model.layers.1.mlp.gate_up_proj.weight"


@pytest.fixture
def draft(tmp_path, rng):
    source = write_llama(tmp_path / "source", llama_tensors(rng))
    convert(source, tmp_path / "plain", quantize="f32")
    options = {"transpose_weights": True, "fuse_gate_up": True}
    convert(source, tmp_path / "unrefined", **options)
    return Draft(tmp_path / "plain", tmp_path / "unrefined", tmp_path / "encoded", "a text")


def test_every_weight_has_the_values_of_the_source_in_its_shape(draft):
    for use in draft.package.graph.weights():
        values, source = draft.values(use.name), draft.source_values(use.name)
        assert values.shape == source.shape == use.shape, use.name
        assert np.abs(values - source).max() <= 0.3 * np.abs(source).max(), use.name
    gate = draft.source.dequantize(FUSED.replace("gate_up", "gate"))
    assert np.array_equal(draft.source_values(FUSED)[: len(gate)], gate)


def test_what_is_replaced_is_what_a_later_method_starts_from(draft):
    encoded = refine(draft, ())
    before = draft.stored(FUSED)
    draft.replace(FUSED, before[::-1].copy())
    assert np.array_equal(draft.stored(FUSED), before[::-1])
    assert not np.array_equal(draft.stored(FUSED), before)
    assert [path.name for path in encoded.folder.iterdir()] == [FUSED]
