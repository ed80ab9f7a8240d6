"""Published configurations of models with states, at true widths; see the test of the others."""

from __future__ import annotations

import pytest
from rdrr_converter.reading.model import SourceModel
from support.published_hybrids import HYBRIDS
from support.published_models import graph_of, read_published


def read(name: str) -> SourceModel:
    """Read the checkpoint that transformers would save, from a model without memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {key: value for key, value in HYBRIDS[name].items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(HYBRIDS[name]["model_type"], **values)
        )
    return read_published(HYBRIDS[name], model)


STATES = {
    "Qwen3.5-0.8B": ((4, 6144), (16, 128, 128)) * 3,
    "Qwen3.5-35B-A3B": ((4, 8192), (32, 128, 128)) * 3,
    "Qwen3-Next-80B-A3B": ((4, 8192), (32, 128, 128)) * 3,
    "LFM2-1.2B": ((3, 2048),) * 3,
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_every_tensor_of_a_published_hybrid_has_the_expected_shape(name):
    model = read(name)
    graph = graph_of(model)
    shapes = {use.name: use.shape for use in graph.weights()}
    assert shapes == {tensor.name: tensor.shape for tensor in model.tensors}
    assert graph.states == STATES[name]
    (rope,) = graph.ropes
    partial = HYBRIDS[name].get("model_type") != "lfm2"
    assert (rope.rotary_dim, rope.head_dim) == ((64, 256) if partial else (64, 64))
    assert rope.theta == (1e7 if partial else 1e6)
