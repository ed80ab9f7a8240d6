"""The inputs that each layer has of its own for every token, beside the residual stream.

A table holds one embedding for each token and layer. To it the model adds a normed projection of
the token's embedding. Each layer multiplies its part by a gate and adds a projection of the
product to the stream.
"""

from __future__ import annotations

from math import sqrt

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import (
    Embed,
    GatedActivation,
    Linear,
    Norm,
    Op,
    Residual,
    Scale,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.models.manifest import Manifest

INPUTS = "ple"
"""Name of the value with the inputs of all layers, one part for each layer."""


def inputs_of_layers(manifest: Manifest, names: TensorNames, stream: str) -> tuple[Op, ...]:
    """Return the ops that compute the inputs of all layers; none if the layers have no inputs.

    Args:
        manifest: The manifest.
        names: Names of the tensors.
        stream: Value of the embedded tokens.
    """
    sizes, norms = manifest.architecture, manifest.inference.normalization
    width = sizes.hidden_size_per_layer_input
    if not width:
        return ()
    layers, hidden = sizes.num_layers, sizes.hidden_size
    rows = sizes.vocab_size_per_layer_input or sizes.vocab_size
    table = WeightUse(
        names.body("embed_tokens_per_layer.weight"), (rows, layers * width), WeightKind.TABLE
    )
    projection = WeightUse(
        names.body("per_layer_model_projection.weight"), (layers * width, hidden)
    )
    gain = WeightUse(names.body("per_layer_projection_norm.weight"), (width,), WeightKind.VECTOR)
    eps, offset = norms.rms_norm_eps, norms.rms_norm_weight_offset
    return (
        Embed(f"{INPUTS}.token", table, sqrt(width)),
        Linear(stream, f"{INPUTS}.projected", projection),
        Scale(f"{INPUTS}.projected", f"{INPUTS}.scaled", 1.0 / sqrt(hidden)),
        Norm(f"{INPUTS}.scaled", f"{INPUTS}.normed", gain, eps, offset, layers),
        Residual(f"{INPUTS}.normed", f"{INPUTS}.token", f"{INPUTS}.sum"),
        Scale(f"{INPUTS}.sum", INPUTS, sqrt(0.5)),
    )


def input_of_layer(
    manifest: Manifest, names: TensorNames, layer: int, stream: str, activation: str
) -> tuple[Op, ...]:
    """Return the ops that add a layer's input to the stream; none if it has no input.

    Args:
        manifest: The manifest.
        names: Names of the tensors.
        layer: Index of the layer.
        stream: Value of the residual stream, which the last op replaces.
        activation: Activation of the gate, as in `GatedActivation`.
    """
    if not manifest.architecture.hidden_size_per_layer_input:
        return ()
    update = layer_update(manifest, names, layer, stream, activation)
    return (*update, Residual(stream, update[-1].out, f"l{layer}.x_ple"))


def layer_update(
    manifest: Manifest, names: TensorNames, layer: int, x: str, activation: str
) -> tuple[Op, ...]:
    """Return the ops that compute what a layer's input adds to the stream.

    Args:
        manifest: A manifest with `hiddenSizePerLayerInput`.
        names: Names of the tensors.
        layer: Index of the layer.
        x: Value that the gate reads.
        activation: Activation of the gate, as in `GatedActivation`.
    """
    sizes, norms = manifest.architecture, manifest.inference.normalization
    width, hidden = sizes.hidden_size_per_layer_input or 0, sizes.hidden_size

    def weight(part: str, *shape: int, kind: WeightKind = WeightKind.MATRIX) -> WeightUse:
        return WeightUse(names.layer(layer, f"{part}.weight"), shape, kind)

    stem = f"l{layer}.{INPUTS}"
    gain = weight("post_per_layer_input_norm", hidden, kind=WeightKind.VECTOR)
    eps, offset = norms.rms_norm_eps, norms.rms_norm_weight_offset
    return (
        Linear(x, f"{stem}.gate", weight("per_layer_input_gate", width, hidden)),
        GatedActivation(
            f"{stem}.gate",
            INPUTS,
            stem,
            activation,
            width,
            up_parts=sizes.num_layers,
            up_part=layer,
        ),
        Linear(stem, f"{stem}.projected", weight("per_layer_projection", hidden, width)),
        Norm(f"{stem}.projected", f"{stem}.normed", gain, eps, offset),
    )
