"""The draft head of a model with multi-token prediction (MTP), as a small graph of its own.

Such a head predicts the token after the next one. For the token in slot p it reads the embedding of
the token in slot p + 1 and the hidden state of slot p after the final norm:

    x = fc [norm_e(embedding), norm_h(hidden state)], one decoder layer, a norm, the shared logits

Source: DeepSeek-AI 2024, arXiv 2412.19437, section 2.2. The layer has a key-value cache of its own,
in which the row of slot p has slot p. Proposing several tokens, the head reads its own hidden state
in place of the model's. Embedding and output matrix are those of the model.

A package has a head if it has the tensor `mtp.fc.weight`. The names are those of Qwen's
checkpoints; the converter gives them to other families as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rdrr_format.errors import ManifestError

from rdrr_manifests.faults import tensor_field
from rdrr_manifests.graph.builder import GraphBuilder
from rdrr_manifests.graph.derive import append_embedding, append_head
from rdrr_manifests.graph.layers import append_layer
from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import (
    Concat,
    Graph,
    Linear,
    Recall,
    Stateful,
    WeightUse,
)
from rdrr_manifests.models.manifest import Manifest

MTP = "mtp."
"""Prefix of the names of the head's tensors."""

PROJECTION = f"{MTP}fc"
EMBEDDING_NORM = f"{MTP}pre_fc_norm_embedding"
HIDDEN_NORM = f"{MTP}pre_fc_norm_hidden"
FINAL_NORM = f"{MTP}norm"
LAYER = f"{MTP}layers.0."
"""Prefix of the tensors of the head's layer."""


class MtpNames(TensorNames):
    """The tensor names of a draft head, whose layer comes after those of the model.

    Args:
        names: Every tensor name of the package.
        layers: Number of layers of the model, which is the index of the head's layer.
    """

    def __init__(self, names: Collection[str], layers: int) -> None:
        super().__init__(names)
        self._index = layers

    def layer(self, index: int, part: str) -> str:
        """Return the full name of a tensor of a layer, whether or not it exists."""
        return f"{LAYER}{part}" if index == self._index else super().layer(index, part)

    def body(self, part: str) -> str:
        """Return the full name of a tensor outside the layers; the final norm is the head's own."""
        return FINAL_NORM if part == "norm" else super().body(part)


def _graph(manifest: Manifest, names: TensorNames) -> Graph:
    """Return the graph of a head whose layer is the last one of the manifest."""
    build = GraphBuilder(manifest, names)
    layer, size = build.sizes.num_layers - 1, build.sizes.hidden_size
    token = append_embedding(build)
    embedding = build.norm_of(EMBEDDING_NORM, (size,), token, "mtp.embedding")
    recalled = build.add(Recall("mtp.recalled", size))
    hidden = build.norm_of(HIDDEN_NORM, (size,), recalled, "mtp.hidden")
    both = build.add(Concat(embedding, hidden, "mtp.both"))
    weight = WeightUse(f"{PROJECTION}.weight", (size, 2 * size))
    stream = build.add(Linear(both, "mtp.x", weight))
    append_head(build, append_layer(build, layer, stream))
    return build.graph(layers=1)


def derive_mtp(manifest: Manifest, names: Collection[str] | None = None) -> Graph | None:
    """Return the graph of a package's draft head; None if it has none.

    Args:
        manifest: Typed manifest, translated from any generation.
        names: Names of the tensors that exist; those of the manifest when None.

    Raises:
        ManifestError: A tensor of the head is missing or has the wrong shape, or the head needs an
            op that this version lacks.
    """
    known = manifest.tensors if names is None else names
    if f"{PROJECTION}.weight" not in known:
        return None
    if not _ends_with_norm(manifest):
        raise ManifestError("this package needs a newer rdrr: a draft head reads a normed stream")
    layers = manifest.architecture.num_layers
    graph = _graph(_with_one_more_layer(manifest), MtpNames(known, layers))
    if any(isinstance(op, Stateful) for op in graph.ops):
        raise ManifestError("this package needs a newer rdrr: its draft head has a state")
    _check(manifest, graph.weights(), frozenset(known))
    return graph


def _ends_with_norm(manifest: Manifest) -> bool:
    """Return whether the head of the model reads the output of a norm."""
    blocks = manifest.inference
    return blocks.normalization.final_norm and blocks.output.embedding_size is None


def _with_one_more_layer(manifest: Manifest) -> Manifest:
    """Return the manifest of a model with the head's layer, which has full attention."""
    sizes, inference = manifest.architecture, manifest.inference
    pattern = inference.layer_pattern
    if pattern.layer_types is not None:
        kinds = (*pattern.layer_types[: sizes.num_layers], "full_attention")
        pattern = pattern.model_copy(update={"layer_types": kinds})
    return manifest.model_copy(
        update={
            "architecture": sizes.model_copy(update={"num_layers": sizes.num_layers + 1}),
            "inference": inference.model_copy(update={"layer_pattern": pattern}),
        }
    )


def _check(manifest: Manifest, uses: Iterable[WeightUse], names: frozenset[str]) -> None:
    for use in uses:
        tensor = manifest.tensors.get(use.name)
        if use.name not in names or (tensor is not None and tensor.shape != use.shape):
            raise ManifestError(
                "a tensor of the draft head is missing"
                if tensor is None
                else "a tensor of the draft head has the wrong shape",
                where=tensor_field(use.name),
                expected=f"shape {list(use.shape)}",
                found=None if tensor is None else list(tensor.shape),
            )
