"""The graph derived from typed blocks and tensor names."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
from rdrr_format.errors import ManifestError
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.graph.ops import (
    Attention,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Norm,
    Residual,
    Rope,
)
from rdrr_manifests.models import Manifest
from support.graphs import unread_values
from support.manifests import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    VOCAB,
    tensor_shapes,
    valid_manifest,
)


def graph_of(
    layers: int = 2, extra: tuple[str, ...] = (), without: tuple[str, ...] = (), **blocks: Any
) -> Graph:
    """Return the graph of the valid manifest with updated `inference` blocks."""
    data = valid_manifest(layers)
    for key, fields in blocks.items():
        data["inference"][key] |= fields
    names = [name for name in tensor_shapes(layers) if not name.endswith(without)]
    return derive_graph(Manifest.model_validate(data), [*names, *extra])


def of_kind(graph: Graph, kind: type) -> list[Any]:
    return [op for op in graph.ops if isinstance(op, kind)]


def test_a_field_of_ours_is_written_only_with_a_value() -> None:
    data = valid_manifest(1)
    for interleaved in (False, True):
        data["inference"]["rope"]["ropeInterleaved"] = interleaved
        manifest = Manifest.model_validate(data)
        for dump in (manifest.inference.model_dump(by_alias=True), manifest.to_dict()):
            rope = dump.get("inference", dump)["rope"]
            assert rope.get("ropeInterleaved", False) is interleaved
            assert ("ropeInterleaved" in rope) is interleaved
        ropes = of_kind(derive_graph(manifest), Rope)
        assert {one.interleaved for one in ropes} == {interleaved}


def test_a_layer_of_llama_is_the_expected_sequence_of_ops() -> None:
    graph = graph_of(layers=1)
    assert [type(op) for op in graph.ops] == [
        Embed,
        Norm,
        Linear,
        Rope,
        Linear,
        Rope,
        Linear,
        Attention,
        Linear,
        Residual,
        Norm,
        Linear,
        Linear,
        GatedActivation,
        Linear,
        Residual,
        Norm,
        Head,
    ]
    assert {use.name: use.shape for use in graph.weights()} == tensor_shapes(1)


def test_every_value_is_written_once_and_then_read_except_the_logits() -> None:
    assert unread_values(graph_of(layers=3)) == {"logits"}


def test_the_head_uses_its_own_tensor_if_there_is_one_and_the_embedding_otherwise() -> None:
    tied, untied = graph_of(), graph_of(extra=("lm_head.weight",))
    assert of_kind(tied, Head)[0].weight.name == "model.embed_tokens.weight"
    assert of_kind(untied, Head)[0].weight.name == "lm_head.weight"


def test_the_embedding_is_scaled_only_if_the_blocks_state_it() -> None:
    assert of_kind(graph_of(), Embed)[0].scale == 1
    assert of_kind(graph_of(output={"scaleEmbeddings": True}), Embed)[0].scale == sqrt(HIDDEN)
    stated = {"scaleEmbeddings": True, "embeddingScale": 3.0}
    assert of_kind(graph_of(output=stated), Embed)[0].scale == 3


def test_head_norms_follow_the_flag_or_the_tensors() -> None:
    names = tuple(f"model.layers.{i}.self_attn.{k}_norm.weight" for i in (0, 1) for k in "qk")
    for graph in (graph_of(attention={"queryKeyNorm": True}), graph_of(extra=names)):
        norms = [norm for norm in of_kind(graph, Norm) if norm.groups > 1]
        assert [(norm.groups, norm.width) for norm in norms] == [
            (HEADS, HEAD_DIM),
            (KV_HEADS, HEAD_DIM),
        ] * 2
    assert all(norm.groups == 1 for norm in of_kind(graph_of(), Norm))


def test_a_bias_that_exists_is_added() -> None:
    name = "model.layers.1.self_attn.k_proj.bias"
    biased = [op for op in of_kind(graph_of(extra=(name,)), Linear) if op.bias]
    assert [(op.bias.name, op.bias.shape) for op in biased] == [(name, (KV_HEADS * HEAD_DIM,))]


def test_fused_gate_and_up_are_one_linear_and_the_activation_splits_it() -> None:
    layer = "model.layers.0.mlp"
    graph = graph_of(
        layers=1,
        extra=(f"{layer}.gate_up_proj.weight",),
        without=("gate_proj.weight", "up_proj.weight"),
    )
    linear = next(op for op in of_kind(graph, Linear) if "gate_up" in op.weight.name)
    assert linear.weight.shape == (2 * INNER, HIDDEN)
    activation = of_kind(graph, GatedActivation)[0]
    assert (activation.gate, activation.up, activation.width) == (linear.out, None, INNER)


def test_the_four_norms_of_gemma_are_in_their_places() -> None:
    graph = graph_of(
        layers=1,
        normalization={
            "preFeedforwardNorm": True,
            "postFeedforwardNorm": True,
            "rmsNormWeightOffset": True,
        },
    )
    norms = of_kind(graph, Norm)
    assert [norm.weight.name.split(".")[-2] for norm in norms] == [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "norm",
    ]
    assert all(norm.unit_offset for norm in norms)
    branches = [op.branch for op in of_kind(graph, Residual)]
    assert branches == ["l0.attn_post", "l0.ffn_post"]


@pytest.mark.parametrize(
    ("pattern", "global_layers"),
    [
        ({"type": "uniform"}, set()),
        ({"type": "every_n", "period": 3, "offset": 2}, {2, 5}),
        ({"type": "every_n", "period": 3}, {0, 3}),
        ({"type": "alternating", "globalPattern": "odd"}, {1, 3, 5}),
        ({"type": "alternating", "globalPattern": "even"}, {0, 2, 4}),
        (
            {"type": "custom", "layerTypes": ["sliding_attention"] * 5 + ["full_attention"]},
            {5},
        ),
    ],
)
def test_layer_patterns_decide_which_layers_are_global(
    pattern: dict[str, Any], global_layers: set[int]
) -> None:
    graph = graph_of(
        layers=6,
        layerPattern=pattern,
        attention={"slidingWindow": 32},
        rope={"ropeLocalTheta": 100.0},
    )
    ops = of_kind(graph, Attention)
    assert {op.layer for op in ops if op.window is None} == global_layers
    assert {op.window for op in ops} <= {None, 32}
    for rope in of_kind(graph, Rope):
        layer = int(rope.out[1:].split(".")[0])
        theta = graph.ropes[rope.table].theta
        assert theta == (10000.0 if layer in global_layers else 100.0)


def test_local_layers_have_their_own_rope_even_without_a_window() -> None:
    graph = graph_of(
        layerPattern={"type": "every_n", "period": 2, "offset": 1},
        rope={"ropeLocalTheta": 100.0},
    )
    assert all(op.window is None for op in of_kind(graph, Attention))
    thetas = [graph.ropes[op.table].theta for op in of_kind(graph, Rope)]
    assert thetas == [100.0, 100.0, 10000.0, 10000.0]


def test_without_a_window_every_layer_is_global() -> None:
    graph = graph_of(layerPattern={"type": "every_n", "period": 6, "offset": 5})
    assert all(op.window is None for op in of_kind(graph, Attention))
    assert len(graph.ropes) == 1


def test_scores_are_divided_by_the_square_root_of_the_query_scalar() -> None:
    graph = graph_of(attention={"queryPreAttnScalar": 64.0, "attnLogitSoftcapping": 50.0})
    assert {(op.scale, op.softcap) for op in of_kind(graph, Attention)} == {(0.125, 50.0)}


def test_logits_are_capped_and_residuals_scaled_as_the_blocks_state() -> None:
    graph = graph_of(
        output={"finalLogitSoftcapping": 30.0, "logitInputScale": 0.5},
        layerPattern={"residualBranchScale": 0.25},
    )
    head = of_kind(graph, Head)[0]
    assert (head.softcap, head.scale) == (30.0, 0.5)
    assert {op.scale for op in of_kind(graph, Residual)} == {0.25}


def test_the_parameters_of_llama3_scaling_are_in_the_rope_spec() -> None:
    rope = {
        "ropeScalingType": "llama3",
        "ropeScalingFactor": 8.0,
        "llama3LowFreqFactor": 1.0,
        "llama3HighFreqFactor": 4.0,
        "llama3OriginalMaxPos": 64,
        "partialRotaryFactor": 0.5,
    }
    (spec,) = graph_of(rope=rope).ropes
    assert (spec.scaling, spec.factor, spec.original_max_pos) == ("llama3", 8.0, 64)
    assert (spec.low_freq_factor, spec.high_freq_factor) == (1.0, 4.0)
    assert (spec.head_dim, spec.rotary_dim) == (HEAD_DIM, HEAD_DIM // 2)


@pytest.mark.parametrize(
    "prefix", ["model.", "language_model.model.", "model.language_model.", "transformer.", ""]
)
def test_names_may_carry_any_known_prefix(prefix: str) -> None:
    names = [name.replace("model.", prefix, 1) for name in tensor_shapes()]
    graph = derive_graph(Manifest.model_validate(valid_manifest()), names)
    assert {use.name for use in graph.weights()} == set(names)


@pytest.mark.parametrize(
    ("block", "fields", "where"),
    [
        ("attention", {"causal": False}, "inference.attention.causal"),
        ("ffn", {"activation": "mish"}, "inference.ffn.activation"),
        ("rope", {"ropeScalingType": "dynamic"}, "inference.rope.ropeScalingType"),
        ("output", {"embeddingTranspose": True}, "inference.output.embeddingTranspose"),
        ("layerPattern", {"layerTypes": ["mamba", "mamba"]}, "inference.layerPattern.layerTypes"),
    ],
)
def test_a_block_that_no_op_computes_needs_a_newer_rdrr(
    block: str, fields: dict[str, Any], where: str
) -> None:
    with pytest.raises(ManifestError, match="needs a newer rdrr") as caught:
        graph_of(**{block: fields})
    assert caught.value.where == where


def test_mrope_sections_have_no_effect_on_text() -> None:
    sections = {"mropeSection": [8, 4, 4], "mropeInterleaved": True}
    graph, plain = graph_of(rope=sections), graph_of()
    assert graph.ops == plain.ops
    (spec,) = graph.ropes
    assert replace(spec, sections=None, sections_alternate=False) == plain.ropes[0]


def test_features_of_images_reach_the_embedding_and_the_first_layers() -> None:
    values = graph_of(layers=3).values_of_images(2)
    assert values == ("x0", "l0.x_ffn", "l1.x_ffn")


def test_unrotated_layers_have_no_rope_op() -> None:
    graph = graph_of(layers=3, rope={"unrotatedLayers": [1]})
    assert {op.out for op in of_kind(graph, Rope)} == {
        f"l{layer}.{kind}_proj.rope" for layer in (0, 2) for kind in "qk"
    }
    plain = of_kind(graph, Attention)[1]
    assert (plain.q, plain.k) == ("l1.q_proj", "l1.k_proj")


def test_a_pattern_that_covers_too_few_layers_is_refused() -> None:
    with pytest.raises(ManifestError, match="cover every layer"):
        graph_of(layerPattern={"type": "custom", "layerTypes": ["full_attention"]})


def test_the_graph_states_the_sizes_needed_to_plan_memory() -> None:
    graph = graph_of()
    assert (graph.layers, graph.hidden_size, graph.vocab_size) == (2, HIDDEN, VOCAB)
    assert graph.kv_bytes(10, 2) == 2 * 2 * KV_HEADS * HEAD_DIM * 10 * 2
