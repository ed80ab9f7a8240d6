"""Configurations as published, at true widths: every tensor fits, and rope is that of transformers.

They are in the older form that most checkpoints have: defaults left out, `rope_theta` and
`rope_scaling`. Only the number of layers is smaller here, and where noted the number of experts. No
weight is made. `support/published_sources.py` says which were compared with public text.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import Attention, LatentAttention, Residual, Router
from rdrr_manifests.graph.vision import vision_graph
from rdrr_runtime.phases.attention.rope_tables import attention_factor, frequencies
from support.published import MORE_PUBLISHED
from support.published_deepseek import PUBLISHED_DEEPSEEK
from support.published_dense import PUBLISHED_DENSE
from support.published_hybrids import HYBRIDS
from support.published_mixtures import PUBLISHED_MIXTURES
from support.published_models import graph_of, read_published
from support.published_older import PUBLISHED_OLDER, WITHOUT_ROPE
from support.published_sources import COMPARED
from support.published_state_spaces import PUBLISHED_STATE_SPACES
from support.published_state_spaces import WITHOUT_ROPE as STATE_SPACES_WITHOUT_ROPE

PUBLISHED: Mapping[str, dict[str, Any]] = {
    **PUBLISHED_DENSE,
    **PUBLISHED_DEEPSEEK,
    **MORE_PUBLISHED,
    **PUBLISHED_MIXTURES,
    **PUBLISHED_OLDER,
    **PUBLISHED_STATE_SPACES,
}

NO_ROPE = (*WITHOUT_ROPE, *STATE_SPACES_WITHOUT_ROPE)
WITH_ROPE = [name for name in PUBLISHED if name not in NO_ROPE]
PECULIAR = (
    *("rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_local_base_freq"),
    "rotary_pct",
)
"""Keys of a rope that has more than a base."""

RENAMED = {"kimi_k2": "deepseek_v3"}
"""Types of models whose code is that of another type, which transformers does not know."""


def their_config(config: Mapping[str, Any]) -> Any:
    """Return the configuration in transformers, from a copy since transformers modifies it."""
    from transformers import AutoConfig

    values = copy.deepcopy({**config})
    kind = values.pop("model_type")
    return AutoConfig.for_model(RENAMED.get(kind, kind), **values)


def theirs(config: Mapping[str, Any]) -> Any:
    """Return the model in transformers on the meta device, without memory for its weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(their_config(config))


@pytest.fixture(scope="module")
def published():
    """Return a function that returns a model in transformers, and here, from its name."""

    @cache
    def read(name):
        model = theirs(PUBLISHED[name])
        return model, read_published(PUBLISHED[name], model)

    return read


def test_only_configurations_that_are_here_are_said_to_be_compared():
    assert set(COMPARED) <= {*PUBLISHED, *HYBRIDS}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_of_a_published_model_has_the_expected_shape(name, published):
    model, ours = published(name)
    tower = ours.tower.block
    uses = (*graph_of(ours).weights(), *(vision_graph(tower).weights() if tower else ()))
    shapes = {use.name: use.shape for use in uses}
    assert shapes == {tensor.name: tensor.shape for tensor in ours.tensors}
    vision = [key for key in model.state_dict() if "vision" in key or "visual" in key]
    assert bool(vision) == (tower is not None or any("left out" in note for note in ours.notes))


def is_peculiar(name: str) -> bool:
    """Return whether a model states another rope than by a base, or is the first that does not."""
    config = PUBLISHED[name].get("text_config", PUBLISHED[name])
    is_stated = "rope_theta" in config and not any(config.get(key) for key in PECULIAR)
    return name == WITH_ROPE[0] or not is_stated


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if is_peculiar(name) else pytest.mark.thorough)
        for name in WITH_ROPE
    ],
)
def test_rope_of_a_published_model_has_the_frequencies_of_transformers(name, published):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.hunyuan_v1_dense import modeling_hunyuan_v1_dense as hunyuan

    stretched = hunyuan.HunYuanDenseV1RotaryEmbedding.compute_ntk_alpha_rope_parameters

    config = PUBLISHED[name]
    graph = graph_of(published(name)[1])
    whole = their_config(config).get_text_config()
    stated = whole.rope_parameters
    layers = stated if "full_attention" in stated else {None: stated}
    assert len(graph.ropes) == len(layers)
    for spec, (layer_type, rope) in zip(
        sorted(graph.ropes, key=lambda spec: spec.theta),
        sorted(layers.items(), key=lambda item: item[1]["rope_theta"]),
        strict=True,
    ):
        # Some models have other heads in layers of another type.
        is_mixed = "gemma4" in whole.model_type
        sizes = whole.per_layer_config[layer_type] if is_mixed else whole
        heads = whole.num_attention_heads
        head_dim = getattr(sizes, "head_dim", None) or whole.hidden_size // heads
        for context in (2048, 65536):
            if rope["rope_type"] == "default":
                rotated = int(head_dim * (rope.get("partial_rotary_factor") or 1.0))
                steps = np.arange(0, rotated, 2) / rotated
                expected, factor = rope["rope_theta"] ** -steps, 1.0
            elif "alpha" in rope:
                found, factor = stretched(whole)
                expected = found.double().numpy()
            else:
                init = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
                found, factor = init(sizes, "cpu", seq_len=context, layer_type=layer_type)
                expected = found.double().numpy()
                # Phi-3.5 MoE states the factor itself.
                factor = rope.get("short_mscale" if context <= 4096 else "long_mscale", factor)
            np.testing.assert_allclose(frequencies(spec, context), expected, rtol=2e-6)
            assert attention_factor(spec, context) == pytest.approx(factor)


def test_the_peculiarities_of_published_models_are_in_their_graphs(published):
    def graph(name: str) -> Graph:
        return graph_of(published(name)[1])

    def attention(name: str) -> list[Attention]:
        return [op for op in graph(name).ops if isinstance(op, Attention)]

    assert {op.scale for op in attention("gemma-2-27b")} == {1 / 12}
    assert {op.scale for op in attention("granite-3.1-2b")} == {1 / 64}
    branches = [op for op in graph("granite-3.1-2b").ops if isinstance(op, Residual)]
    assert {op.scale for op in branches} == {0.22}
    assert [op.window for op in attention("gemma-2-27b")] == [4096, None, 4096]
    assert [op.window for op in attention("gemma-3-4b")] == [1024] * 5 + [None]
    plain = [op.layer for op in attention("SmolLM3-3B") if not op.q.endswith(".rope")]
    assert plain == [3]
    routers = [op for op in graph("Qwen3-30B-A3B").ops if isinstance(op, Router)]
    assert {(op.experts, op.top_k, op.normalize) for op in routers} == {(128, 8, True)}
    routers = [op for op in graph("dots.llm1").ops if isinstance(op, Router)]
    assert [(op.scoring, op.top_k, op.scale, op.groups) for op in routers] == [
        ("sigmoid", 6, 2.5, 1)
    ]
    latents = {
        name: next(op for op in graph(name).ops if isinstance(op, LatentAttention))
        for name in ("DeepSeek-V2-Lite", "DeepSeek-V3", "GLM-4.7-Flash")
    }
    scales = {name: op.scale for name, op in latents.items()}
    usual = (128 + 64) ** -0.5
    assert scales["DeepSeek-V2-Lite"] == pytest.approx(usual * (0.0707 * math.log(40) + 1) ** 2)
    assert scales["DeepSeek-V3"] == pytest.approx(usual * (0.1 * math.log(40) + 1) ** 2)
    assert scales["GLM-4.7-Flash"] == pytest.approx(256**-0.5)
    assert {op.eps for op in latents.values()} == {1e-6}
    assert graph("DeepSeek-V3").caches[0].elements == 512 + 64
    routers = [op for op in graph("DeepSeek-V3").ops if isinstance(op, Router)]
    assert [(op.groups, op.top_groups, op.group_score, op.scale) for op in routers] == [
        (8, 4, "top2", 2.5)
    ]
    assert graph("Phi-4-mini").ropes[0].rotary_dim == 96
    assert graph("Qwen2.5-7B with yarn").context == 131072
