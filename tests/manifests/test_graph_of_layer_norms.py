"""The graph of older families: LayerNorm, no gate, learned positions, parallel branches."""

from __future__ import annotations

from typing import Any

import pytest
from rdrr_format.errors import ManifestError
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.graph.mtp import PROJECTION, derive_mtp
from rdrr_manifests.graph.ops import (
    Activation,
    GatedActivation,
    Head,
    Linear,
    Norm,
    PositionEmbed,
    Residual,
)
from rdrr_manifests.models import Manifest
from support.graphs import unread_values
from support.manifests import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCAB,
    tensor_shapes,
    valid_manifest,
)


def graph_of(extra: tuple[str, ...] = (), **blocks: Any) -> Graph:
    """Return the graph of the valid manifest with updated `inference` blocks."""
    data = valid_manifest(1)
    for key, fields in blocks.items():
        data["inference"][key] |= fields
    return derive_graph(Manifest.model_validate(data), [*tensor_shapes(1), *extra])


def of_kind(graph: Graph, kind: type) -> list[Any]:
    return [op for op in graph.ops if isinstance(op, kind)]


def test_norms_are_layer_norms_if_the_manifest_says_so_and_have_the_biases_that_exist() -> None:
    name = "model.layers.0.input_layernorm.bias"
    norms = of_kind(graph_of((name,), normalization={"layerNorm": True}), Norm)
    assert {op.centred for op in norms} == {True}
    assert [op.bias and (op.bias.name, op.bias.shape) for op in norms] == [
        (name, (HIDDEN,)),
        None,
        None,
    ]
    assert {op.centred for op in of_kind(graph_of(), Norm)} == {False}


def test_a_norm_per_head_has_a_weight_for_each_head() -> None:
    stated = {"queryKeyNorm": True, "queryKeyNormPerHead": True}
    norms = [op for op in of_kind(graph_of(attention=stated), Norm) if op.groups > 1]
    assert [op.weight.shape for op in norms] == [(HEADS, HEAD_DIM), (KV_HEADS, HEAD_DIM)]
    assert {op.is_plain for op in norms} == {False}


@pytest.mark.parametrize("name", ["gelu_erf", "relu", "relu2"])
def test_a_feed_forward_without_a_gate_has_two_products(name: str) -> None:
    graph = graph_of(ffn={"gatedActivation": False, "activation": name})
    assert not of_kind(graph, GatedActivation)
    (op,) = of_kind(graph, Activation)
    assert (op.activation, op.x) == (name, "l0.up_proj")
    assert "l0.gate_proj" not in {span.out for span in of_kind(graph, Linear)}


def test_positions_are_added_to_the_embedding_and_the_head_has_its_bias() -> None:
    graph = graph_of(("lm_head.bias",), output={"positionEmbeddingOffset": 2})
    (op,) = of_kind(graph, PositionEmbed)
    assert (op.x, op.weight.name, op.offset) == ("x0", "model.embed_positions.weight", 2)
    assert op.weight.shape == (graph.context + 2, HIDDEN)
    assert graph.ops[-1].bias.shape == (VOCAB,)
    assert of_kind(graph_of(), Head)[0].bias is None


@pytest.mark.parametrize("own_norm", [False, True])
def test_parallel_branches_both_read_the_stream_before_the_layer(own_norm: bool) -> None:
    graph = graph_of(
        layerPattern={"parallelResidual": True}, normalization={"postAttentionNorm": own_norm}
    )
    inputs = {op.out: op.x for op in graph.ops if isinstance(op, Norm | Linear)}
    assert inputs["l0.q_proj"] == "l0.attn_in"
    assert inputs["l0.gate_proj"] == ("l0.ffn_in" if own_norm else "l0.attn_in")
    assert inputs.get("l0.ffn_in", "x0") == "x0"
    assert [(op.x, op.branch) for op in of_kind(graph, Residual)] == [
        ("x0", "l0.down_proj"),
        ("l0.x_ffn", "l0.o_proj"),
    ]
    assert unread_values(graph) == {"logits"}


def test_norms_after_the_residual_become_the_stream() -> None:
    stated = {"normAfterResidual": True, "finalNorm": False}
    graph = graph_of(normalization=stated)
    assert [(op.x, op.weight.name.split(".")[-2]) for op in of_kind(graph, Norm)] == [
        ("l0.x_attn", "input_layernorm"),
        ("l0.x_ffn", "post_attention_layernorm"),
    ]
    assert [(op.x, op.branch) for op in of_kind(graph, Residual)] == [
        ("x0", "l0.o_proj"),
        ("l0.attn_post", "l0.down_proj"),
    ]
    inputs = {op.out: op.x for op in of_kind(graph, Linear)}
    assert (inputs["l0.q_proj"], inputs["l0.up_proj"]) == ("x0", "l0.attn_post")
    assert graph.ops[-1].x == "l0.ffn_post"
    assert unread_values(graph) == {"logits"}


@pytest.mark.parametrize("has_norm", [False, True])
def test_projections_stand_beside_an_embedding_of_another_width(has_norm: bool) -> None:
    graph = graph_of(normalization={"finalNorm": has_norm}, output={"embeddingSize": 24})
    first, *_, last = of_kind(graph, Linear)
    assert (first.x, first.weight.name, first.weight.shape) == (
        "x0",
        "model.project_in.weight",
        (HIDDEN, 24),
    )
    assert (last.x, last.weight.name, last.weight.shape) == (
        "final" if has_norm else "l0.x_ffn",
        "model.project_out.weight",
        (24, HIDDEN),
    )
    assert (graph.ops[-1].x, graph.ops[-1].weight.shape) == ("project_out", (VOCAB, 24))
    assert (graph.output_size, graph_of().output_size) == (24, HIDDEN)


@pytest.mark.parametrize(
    "blocks",
    [
        {"layerPattern": {"parallelResidual": True}},
        {"normalization": {"preFeedforwardNorm": True}},
        {"layerPattern": {"type": "custom", "layerTypes": ["linear_attention"]}},
    ],
)
def test_norms_after_the_residual_of_other_layers_need_a_newer_rdrr(blocks: dict[str, Any]) -> None:
    stated = {"normAfterResidual": True, **blocks.get("normalization", {})}
    with pytest.raises(ManifestError, match="needs a newer rdrr") as caught:
        graph_of(**blocks | {"normalization": stated})
    assert caught.value.where == "inference.normalization.normAfterResidual"


@pytest.mark.parametrize(
    "blocks", [{"normalization": {"finalNorm": False}}, {"output": {"embeddingSize": 24}}]
)
def test_a_draft_head_needs_a_model_that_ends_with_a_norm(blocks: dict[str, Any]) -> None:
    data = valid_manifest(1)
    for key, fields in blocks.items():
        data["inference"][key] |= fields
    names = [*tensor_shapes(1), f"{PROJECTION}.weight"]
    with pytest.raises(ManifestError, match="reads a normed stream"):
        derive_mtp(Manifest.model_validate(data), names)
    assert derive_mtp(Manifest.model_validate(data), tensor_shapes(1)) is None  # the control


def test_experts_without_a_gate_need_a_newer_rdrr() -> None:
    data = valid_manifest(1)
    data["inference"]["ffn"]["gatedActivation"] = False
    data["moeConfig"] = {"numExperts": 4, "numExpertsPerToken": 2, "expertFormat": "mixtral"}
    with pytest.raises(ManifestError, match="needs a newer rdrr") as caught:
        derive_graph(Manifest.model_validate(data))
    assert caught.value.where in ("inference.ffn.gatedActivation", "moeConfig")
