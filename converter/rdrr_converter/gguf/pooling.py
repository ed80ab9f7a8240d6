"""Embedding and reranking models in GGUF files, read as the files of sentence-transformers.

A reranking model has a linear layer on the last token, with a row for each label. llama.cpp writes
Qwen3-Reranker this way: the layer holds the rows of the output matrix for the tokens `yes` and
`no`, and the softmax of the two logits is the result. Such a file is read as a checkpoint that
classifies texts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import ConversionError

from rdrr_converter.gguf.architecture import GgufArchitecture

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


POOLING_TYPES: Mapping[int, str] = MappingProxyType({1: "mean", 2: "cls", 3: "last"})
"""The pooling of each value of `pooling_type`; 0 is none."""

DENSE = ("dense_2.weight", "dense_3.weight")
"""Linear layers after the pooling, in order."""

FOLDERS = ("2_Dense", "3_Dense")
"""Folders that the modules of these layers have in a checkpoint."""

_MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken"}
_TYPE = "sentence_transformers.models"


def module_files(
    metadata: Mapping[str, Any], name: str, layers: Sequence[tuple[int, ...]], where: object
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files that state the pooling of an embedding model, and notes; none without one.

    llama.cpp divides embeddings by their norm unless it is asked not to, so these are.

    Args:
        metadata: Metadata of the file.
        name: `general.architecture`.
        layers: Shapes of the linear layers after the pooling.
        where: The file, for messages.

    Raises:
        ConversionError: The pooling is none that the format knows.
    """
    kind = metadata.get(f"{name}.pooling_type")
    if kind in (None, 0):
        return {}, ()
    pooling = POOLING_TYPES.get(kind) if isinstance(kind, int) else None
    if pooling is None:
        raise ConversionError(
            "this pooling cannot be converted",
            where=f"{where}, {name}.pooling_type",
            expected=", ".join(f"{number} ({mode})" for number, mode in POOLING_TYPES.items()),
            found=f"{kind} (scores of a reranking model)" if kind == RANK else kind,
        )
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    files: dict[str, object] = {"1_Pooling/config.json": {"pooling_mode": _MODES[pooling]}}
    for folder, shape in zip(FOLDERS, layers, strict=False):
        kinds.append(("Dense", folder))
        files[f"{folder}/config.json"] = {
            "out_features": shape[0] if shape else None,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    files["modules.json"] = [{"type": f"{_TYPE}.{one}", "path": path} for one, path in kinds]
    return {path: json.dumps(content).encode() for path, content in files.items()}, (
        "embeddings are normalized, as llama.cpp does: the GGUF does not state it",
    )
