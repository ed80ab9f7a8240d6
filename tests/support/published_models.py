"""Models as published, read from the tensors that transformers would save, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdrr_converter.architectures import find_architecture
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.reading.model import SourceModel, read_model
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.models import Manifest


def _unread() -> Any:
    raise AssertionError("there are no weights here")


def read_published(config: Mapping[str, Any], model: Any) -> SourceModel:
    """Read the checkpoint that the model would be saved as, where a tied head has no tensor."""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tensors = {
        name: SourceTensor(name, tuple(tensor.shape), "BF16", "model.safetensors", _unread)
        for name, tensor in state.items()
    }
    source = Source(Path("checkpoint"), "safetensors", config, tensors)
    return read_model(source, find_architecture(config))


def graph_of(model: SourceModel) -> Graph:
    """Return the graph of a package with the tensors of the checkpoint."""
    manifest = Manifest(
        model_id="m",
        quantization="BF16",
        architecture=model.sizes,
        moe_config=model.moe,
        inference=model.inference,
        total_size=0,
        shards=(),
        tensors={},
    )
    return derive_graph(manifest, [tensor.name for tensor in model.tensors])
