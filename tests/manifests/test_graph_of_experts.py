"""The graph of layers with experts, derived from `moeConfig` and the tensor names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rdrr_format.errors import ManifestError
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.graph.ops import (
    Activation,
    Experts,
    GatedActivation,
    Linear,
    Residual,
    Router,
    SigmoidGate,
)
from rdrr_manifests.models import Manifest
from rdrr_manifests.validation import validate
from support.graphs import unread_values
from support.manifests import HIDDEN, INNER, tensor_shapes, valid_manifest, write_manifest

EXPERTS, USED, WIDTH, SHARED = 4, 2, 48, 80
MOE = {
    "numExperts": EXPERTS,
    "numExpertsPerToken": USED,
    "expertFormat": "mixtral",
    "expertIntermediateSize": WIDTH,
    "normalizeWeights": False,
}
QWEN = (
    "mlp.gate",
    "mlp.experts.{}.gate_proj",
    "mlp.experts.{}.up_proj",
    "mlp.experts.{}.down_proj",
)
MIXTRAL = (
    "block_sparse_moe.gate",
    "block_sparse_moe.experts.{}.w1",
    "block_sparse_moe.experts.{}.w3",
    "block_sparse_moe.experts.{}.w2",
)
SHARED_EXPERT = (
    "shared_expert.gate_proj",
    "shared_expert.up_proj",
    "shared_expert.down_proj",
    "shared_expert_gate",
)


def names_of(spelling: Sequence[str], layers: Sequence[int], *, shared: bool = False) -> list[str]:
    """Return the tensor names of a model with two layers, of which some have experts."""
    names = [
        name
        for name in tensor_shapes(2)
        if not any(name.startswith(f"model.layers.{layer}.mlp.") for layer in layers)
    ]
    router, *parts = spelling
    for layer in layers:
        own = [router, *(part.format(number) for part in parts for number in range(EXPERTS))]
        own += [f"mlp.{part}" for part in SHARED_EXPERT] if shared else []
        names += [f"model.layers.{layer}.{part}.weight" for part in own]
    return names


def graph_of(names: Sequence[str], **moe: Any) -> Graph:
    data = valid_manifest() | {"moeConfig": {**MOE, **moe}}
    return derive_graph(Manifest.model_validate(data), names)


def of_kind(graph: Graph, kind: type) -> list[Any]:
    return [op for op in graph.ops if isinstance(op, kind)]


@pytest.mark.parametrize("spelling", [QWEN, MIXTRAL], ids=["qwen", "mixtral"])
def test_a_layer_with_experts_has_a_router_and_a_matrix_for_each_expert(
    spelling: tuple[str, ...],
) -> None:
    names = names_of(spelling, (0, 1))
    graph = graph_of(names)
    routers, experts = of_kind(graph, Router), of_kind(graph, Experts)
    assert [(op.experts, op.top_k, op.normalize) for op in routers] == [(EXPERTS, USED, False)] * 2
    for layer, op in enumerate(experts):
        assert (op.router, op.x, op.width) == (routers[layer].out, routers[layer].x, WIDTH)
        for number, (gate, up, down) in enumerate(zip(op.gates, op.ups, op.downs, strict=True)):
            parts = [part.format(number) for part in spelling[1:]]
            stem = f"model.layers.{layer}."
            assert [gate.name, up.name, down.name] == [f"{stem}{one}.weight" for one in parts]
            assert (gate.shape, up.shape, down.shape) == (
                (WIDTH, HIDDEN),
                (WIDTH, HIDDEN),
                (HIDDEN, WIDTH),
            )
    assert of_kind(graph, GatedActivation) == []
    assert {use.name for use in graph.weights()} == set(names)


def test_layers_without_a_router_are_dense() -> None:
    graph = graph_of(names_of(QWEN, (1,)))
    (op,) = of_kind(graph, Experts)
    assert op.out == "l1.experts"
    (dense,) = of_kind(graph, GatedActivation)
    assert (dense.out, dense.width) == ("l0.act", INNER)


def test_the_shared_expert_is_gated_and_added_before_the_residual() -> None:
    names = names_of(QWEN, (0, 1), shared=True)
    graph = graph_of(names, sharedExpertIntermediateSize=SHARED)
    gate = of_kind(graph, SigmoidGate)[0]
    down = next(op for op in of_kind(graph, Linear) if op.out == gate.branch)
    assert (gate.weight.shape, down.weight.shape) == ((1, HIDDEN), (HIDDEN, SHARED))
    added = [op for op in of_kind(graph, Residual) if op.branch == gate.out]
    assert [op.x for op in added] == ["l0.experts"]
    stream = [op for op in of_kind(graph, Residual) if op.branch == added[0].out]
    assert [op.out for op in stream] == ["l0.x_ffn"]
    assert unread_values(graph) == {"logits"}
    assert {use.name for use in graph.weights()} == set(names)


def ungated(names: Sequence[str], *more: str, **moe: Any) -> Graph:
    """Return the graph of a model without gates, with `more` tensors in its last layer."""
    data = valid_manifest() | {"moeConfig": {**MOE, **moe}}
    data["inference"]["ffn"] |= {"gatedActivation": False, "activation": "relu2"}
    kept = [name for name in names if "gate_proj" not in name]
    kept += [f"model.layers.1.mlp.{name}" for name in more]
    return derive_graph(Manifest.model_validate(data), kept)


def test_experts_without_gates_have_an_activation_of_their_ups() -> None:
    shared = ("shared_experts.up_proj.weight", "shared_experts.down_proj.weight")
    graph = ungated(names_of(QWEN, (1,)), *shared, sharedExpertIntermediateSize=SHARED)
    (op,) = of_kind(graph, Experts)
    assert (op.gates, op.activation, op.clamp) == ((), "relu2", None)
    assert [up.shape for up in op.ups] == [(WIDTH, HIDDEN)] * EXPERTS
    dense, beside = of_kind(graph, Activation)
    assert (dense.width, beside.width) == (INNER, SHARED)
    assert of_kind(graph, GatedActivation) == []


def test_experts_of_a_latent_are_between_two_projections_and_the_router_is_not() -> None:
    latents = ("fc1_latent_proj.weight", "fc2_latent_proj.weight")
    graph = ungated(names_of(QWEN, (1,)), *latents, expertLatentSize=24)
    (op,), (router,) = of_kind(graph, Experts), of_kind(graph, Router)
    inward = next(span for span in of_kind(graph, Linear) if span.out == op.x)
    outward = next(span for span in of_kind(graph, Linear) if span.x == op.out)
    assert inward.x == router.x
    assert (inward.weight.shape, outward.weight.shape) == ((24, HIDDEN), (HIDDEN, 24))
    assert (op.ups[0].shape, op.downs[0].shape) == ((WIDTH, 24), (24, WIDTH))
    assert unread_values(graph) == {"logits"}


@pytest.mark.parametrize(
    ("more", "moe"),
    [(("experts.up_proj.bias",), {}), ((), {"weightsScaleInputs": True})],
    ids=["biases", "weighted inputs"],
)
def test_experts_without_gates_in_another_form_need_a_newer_rdrr(
    more: tuple[str, ...], moe: dict[str, Any]
) -> None:
    names = names_of(QWEN, (1,))
    ungated(names)  # the control
    with pytest.raises(ManifestError, match="needs a newer rdrr") as caught:
        ungated(names, *more, **moe)
    assert caught.value.where == "inference.ffn.gatedActivation"


def test_routing_weights_are_normalized_unless_the_block_states_otherwise() -> None:
    names = names_of(MIXTRAL, (0, 1))
    assert all(op.normalize for op in of_kind(graph_of(names, normalizeWeights=True), Router))
    silent = {key: value for key, value in MOE.items() if key != "normalizeWeights"}
    data = valid_manifest() | {"moeConfig": silent}
    graph = derive_graph(Manifest.model_validate(data), names)
    assert all(op.normalize for op in of_kind(graph, Router))


@pytest.mark.parametrize(
    "moe",
    [
        {"expertFormat": "gpt-oss"},
        {"numExperts": 10**9},
        {"numExpertsPerToken": 9},
        {"scoreFunction": "sparsemixer"},
        {"sparsemixerMargin": 0.1},
        {"scoreFunction": "sparsemixer", "sparsemixerMargin": 0.1, "expertGroups": 2},
        {"scoreFunction": "sparsemixer", "sparsemixerMargin": 0.1, "normalizeWeights": True},
    ],
    ids=[
        "packed",
        "more than there are tensors",
        "more than there are",
        "sparsemixer without a margin",
        "a margin without sparsemixer",
        "sparsemixer with groups",
        "sparsemixer with normalized weights",
    ],
)
def test_experts_in_another_format_need_a_newer_rdrr(moe: dict[str, Any]) -> None:
    names = names_of(QWEN, (0, 1))
    graph_of(names)  # the control
    with pytest.raises(ManifestError, match="needs a newer rdrr") as caught:
        graph_of(names, **moe)
    assert caught.value.where == "moeConfig"


def test_the_margin_of_sparsemixer_is_that_of_the_router() -> None:
    graph = graph_of(names_of(QWEN, (1,)), scoreFunction="sparsemixer", sparsemixerMargin=0.02)
    (router,) = of_kind(graph, Router)
    assert (router.scoring, router.margin, router.normalize) == ("sparsemixer", 0.02, False)


def test_experts_without_tensors_need_a_newer_rdrr() -> None:
    with pytest.raises(ManifestError, match="needs a newer rdrr"):
        graph_of(list(tensor_shapes(2)))


def test_a_number_of_experts_of_the_wrong_type_is_a_fault_of_its_field(tmp_path: Any) -> None:
    path = write_manifest(tmp_path, valid_manifest() | {"moeConfig": {**MOE, "numExperts": "8"}})
    fields = {fault.field for fault in validate(path).faults}
    assert any("moeConfig.numExperts" in field for field in fields), fields
