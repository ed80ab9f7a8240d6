"""Derive the semantic graph from the typed blocks of a manifest.

No module outside this folder interprets `inference` as instructions. Where the blocks and the
tensors disagree, the tensors decide (a bias that exists is added, a head that exists is used),
because published manifests state some of these flags wrongly.
"""

from __future__ import annotations

from collections.abc import Collection
from math import sqrt

from rdrr_manifests.graph.altup import AltUp
from rdrr_manifests.graph.builder import GraphBuilder
from rdrr_manifests.graph.layers import append_layer, append_layer_of_streams
from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import (
    Embed,
    Graph,
    Head,
    Linear,
    PositionEmbed,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.graph.per_layer_inputs import inputs_of_layers
from rdrr_manifests.models.manifest import Manifest

TABLE = WeightKind.TABLE


def derive_graph(manifest: Manifest, names: Collection[str] | None = None) -> Graph:
    """Return the graph of a package.

    Args:
        manifest: Typed manifest, translated from any generation.
        names: Names of the tensors that exist; those of the manifest when None.

    Raises:
        ManifestError: The blocks need an op that this version lacks ("needs a newer rdrr").
    """
    known = TensorNames(manifest.tensors if names is None else names)
    build = GraphBuilder(manifest, known)
    layers = range(build.sizes.num_layers)
    stream = append_embedding(build)
    build.add(*inputs_of_layers(manifest, known, stream))
    if build.sizes.altup_num_inputs:
        altup = AltUp(manifest, known)
        stream = build.add(*altup.begin(stream))
        for layer in layers:
            stream = append_layer_of_streams(build, layer, stream, altup)
        stream = build.add(*altup.end(stream))
    else:
        for layer in layers:
            stream = append_layer(build, layer, stream)
    append_head(build, stream)
    return build.graph(len(layers))


def append_embedding(build: GraphBuilder) -> str:
    """Append the embedding of the tokens, and of their positions if there is one."""
    output, sizes = build.blocks.output, build.sizes
    scale = 1.0
    if output.embedding_scale is not None:
        scale = output.embedding_scale
    elif output.scale_embeddings:
        scale = sqrt(sizes.hidden_size)
    stream = build.add(Embed("x0", _table(build), scale))
    if output.embedding_size is not None:
        shape = (sizes.hidden_size, output.embedding_size)
        stream = _projection(build, "project_in", stream, shape)
    offset, types = output.position_embedding_offset, output.token_types
    if types is not None:
        use = WeightUse(build.names.body("embed_types.weight"), (types, sizes.hidden_size), TABLE)
        stream = build.add(PositionEmbed(stream, f"{stream}.typed", use, 0, by_type=True))
    stream = stream if offset is None else _positions(build, stream, offset)
    if build.names.body("embed_norm.weight") not in build.names:
        return stream
    return build.norm_of(build.names.body("embed_norm"), (sizes.hidden_size,), stream, "x0.norm")


def _table(build: GraphBuilder) -> WeightUse:
    """Return the embedding of the tokens."""
    rows = build.blocks.output.embedding_vocab_size or build.sizes.vocab_size
    name = build.names.body("embed_tokens.weight")
    width = build.blocks.output.embedding_size or build.sizes.hidden_size
    return WeightUse(name, (rows, width), TABLE)


def _projection(build: GraphBuilder, part: str, x: str, shape: tuple[int, int]) -> str:
    """Append a projection outside the layers; return its output."""
    weight = WeightUse(build.names.body(f"{part}.weight"), shape)
    return build.add(Linear(x, part, weight))


def _positions(build: GraphBuilder, stream: str, offset: int) -> str:
    """Append the learned position embedding."""
    name = build.names.body("embed_positions.weight")
    shape = (build.sizes.max_seq_len + offset, build.sizes.hidden_size)
    weight = WeightUse(name, shape, TABLE)
    return build.add(PositionEmbed(stream, f"{stream}.placed", weight, offset))


def append_head(build: GraphBuilder, stream: str) -> None:
    """Append the final norm if there is one, and the logits, whose matrix may be the embedding."""
    output, table, hidden = build.blocks.output, _table(build), build.sizes.hidden_size
    if build.blocks.normalization.final_norm:
        stream = build.norm_of(build.names.body("norm"), (hidden,), stream, "final")
    if output.embedding_size is not None:
        shape = (output.embedding_size, hidden)
        stream = _projection(build, "project_out", stream, shape)
    head, bias, rows = build.names.head(), build.names.head_bias(), table.shape[:1]
    build.add(
        Head(
            stream,
            "logits",
            WeightUse(table.name if head is None else head, table.shape),
            output.logit_input_scale,
            output.final_logit_softcapping,
            None if bias is None else WeightUse(bias, rows, WeightKind.VECTOR),
        )
    )
