"""Reranking models in GGUF files: a linear layer on the last token, with a row for each label.

llama.cpp writes Qwen3-Reranker this way: the layer holds the rows of the output matrix for the
tokens `yes` and `no`, and the softmax of the two logits is the result. Such a file is read as a
checkpoint that classifies texts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rdrr_converter.sources.gguf_architecture import GgufArchitecture

RANK = 4
"""The value of `pooling_type` of reranking models."""

LABELS = "classifier.output_labels"
RANK_HEAD = "cls.output.weight"


@dataclass(frozen=True)
class RankHead:
    """What a GGUF states of the head of a reranking model.

    Attributes:
        names: Names of its tensors in a checkpoint, by llama.cpp's; empty without such a head.
        config: Keys of the configuration.
    """

    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def read_rank_head(
    metadata: Mapping[str, Any], architecture: GgufArchitecture, names: Collection[str]
) -> RankHead:
    """Return the head of a reranking model of the form that llama.cpp writes, if there is one.

    Args:
        metadata: Metadata of the file.
        architecture: Its architecture.
        names: llama.cpp's names of its tensors.
    """
    kind = metadata.get(f"{architecture.name}.pooling_type")
    if architecture.rank_class is None or kind != RANK or RANK_HEAD not in names:
        return RankHead()
    config: dict[str, Any] = {
        "architectures": [architecture.rank_class],
        "problem_type": "single_label_classification",
    }
    labels = metadata.get(f"{architecture.name}.{LABELS}")
    if isinstance(labels, list):
        config["id2label"] = {str(index): label for index, label in enumerate(labels)}
    return RankHead({RANK_HEAD: "score.weight"}, config)
