"""The graph of layers with recurrent states beside layers with attention."""

from __future__ import annotations

from typing import Any

import pytest
from rdrr_format.errors import ManifestError
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.graph.ops import (
    Attention,
    DeltaRule,
    GatedActivation,
    Linear,
    Norm,
    ShortConvolution,
    Slice,
)
from rdrr_manifests.models import Manifest
from support.graphs import unread_values
from support.manifests import HEAD_DIM, HEADS, HIDDEN, tensor_shapes, valid_manifest

SIZES = {
    "linearNumKeyHeads": 2,
    "linearNumValueHeads": 4,
    "linearKeyHeadDim": 8,
    "linearValueHeadDim": 12,
    "linearConvKernelDim": 3,
    "linearNormMode": "shared",
}
CHANNELS = 2 * 2 * 8 + 4 * 12


def hybrid(**sizes: Any) -> Manifest:
    """Return a manifest of two layers, the first with linear and the second with full attention."""
    data = valid_manifest(2)
    data["architecture"] |= SIZES | sizes
    data["inference"]["attention"]["attentionOutputGate"] = True
    kinds = ["linear_attention", "full_attention"]
    data["inference"]["layerPattern"] = {"type": "custom", "layerTypes": kinds}
    return Manifest.model_validate(data)


def graph_of(**sizes: Any) -> Graph:
    return derive_graph(hybrid(**sizes), tensor_shapes(2))


def of_kind(graph: Graph, kind: type) -> list[Any]:
    return [op for op in graph.ops if isinstance(op, kind)]


def test_only_layers_with_attention_have_a_cache_and_only_the_others_states() -> None:
    graph = graph_of()
    assert unread_values(graph) == {"logits"}
    assert list(graph.caches) == [1]
    assert graph.states == ((3, CHANNELS), (4, 8, 12))
    assert graph.state_bytes() == 4 * (3 * CHANNELS + 4 * 8 * 12)
    assert [op.layer for op in of_kind(graph, Attention)] == [1]


def test_linear_attention_is_a_delta_rule_behind_a_convolution_with_a_gated_norm() -> None:
    graph = graph_of()
    (convolution,), (rule,) = of_kind(graph, ShortConvolution), of_kind(graph, DeltaRule)
    assert (convolution.channels, convolution.kernel, convolution.activation) == (
        CHANNELS,
        3,
        "silu",
    )
    assert rule.qkv == convolution.out
    assert (rule.key_heads, rule.heads, rule.key_dim, rule.value_dim) == (2, 4, 8, 12)
    norm = next(op for op in of_kind(graph, Norm) if op.x == rule.out)
    assert (norm.groups, norm.width, norm.unit_offset) == (4, 12, False)
    gate = next(op for op in of_kind(graph, GatedActivation) if op.up == norm.out)
    assert (gate.gate, gate.activation) == ("l0.in_proj_z", "silu")


def test_the_output_gate_is_the_second_half_of_each_head_of_the_query_projection() -> None:
    graph = graph_of()
    whole = next(op for op in of_kind(graph, Linear) if op.out == "l1.q_proj")
    assert whole.weight.shape == (2 * HEADS * HEAD_DIM, HIDDEN)
    query, gate = of_kind(graph, Slice)
    assert [(op.x, op.groups, op.size, op.first, op.width) for op in (query, gate)] == [
        ("l1.q_proj", HEADS, 2 * HEAD_DIM, 0, HEAD_DIM),
        ("l1.q_proj", HEADS, 2 * HEAD_DIM, HEAD_DIM, HEAD_DIM),
    ]
    (gated,) = (op for op in of_kind(graph, GatedActivation) if op.activation == "sigmoid")
    assert (gated.gate, gated.up) == (gate.out, "l1.attn")


@pytest.mark.parametrize("missing", [key for key in SIZES if key != "linearNormMode"])
def test_linear_attention_needs_its_sizes(missing: str) -> None:
    with pytest.raises(ManifestError, match="need this size") as caught:
        graph_of(**{missing: None})
    assert caught.value.where == f"architecture.{missing}"


def test_value_heads_must_share_the_key_heads_evenly() -> None:
    with pytest.raises(ManifestError, match="evenly"):
        graph_of(linearNumKeyHeads=3)


def test_a_norm_for_each_head_needs_a_newer_rdrr() -> None:
    with pytest.raises(ManifestError, match="needs a newer rdrr"):
        graph_of(linearNormMode="per_head")
