"""Reading how a checkpoint of sentence-transformers makes embeddings: `modules.json` and its parts.

Such a checkpoint is a language model with further modules after it. `modules.json` lists them in
order; each has a folder with a `config.json`. What the manifest cannot express is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdrr_format.errors import ConversionError, SourceError
from rdrr_format.file_names import is_plain_name
from rdrr_manifests.models import EmbeddingPostprocessor

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.reading.dense_modules import read_layers, read_module
from rdrr_converter.reading.matching import ModelTensor

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"

_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
"""The pooling of each flag that the format can express."""

_ALL_FLAGS = (
    *_FLAGS,
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
)

_MODES = {"cls": "cls", "lasttoken": "last", "mean": "mean"}
"""The pooling of each value of `pooling_mode`, which newer files have instead of the flags."""

_DENSE, _NORMALIZE, _POOLING, _TRANSFORMER = "Dense", "Normalize", "Pooling", "Transformer"


@dataclass(frozen=True)
class SentenceModules:
    """What follows the language model of an embedding model.

    Attributes:
        block: The block of the manifest.
        tensors: The tensors of the linear layers, in order.
    """

    block: EmbeddingPostprocessor
    tensors: tuple[ModelTensor, ...]


def read_modules(source: Source, hidden_size: int) -> SentenceModules | None:
    """Return how the checkpoint makes embeddings; None if it is no embedding model.

    Args:
        source: The checkpoint.
        hidden_size: Width of the hidden states that a head would read.

    Raises:
        SourceError: A file is missing or damaged.
        ConversionError: There is a module or a pooling that the format cannot express.
    """
    modules = list_modules(source)
    if not modules:
        return None
    kinds = [kind for kind, _ in modules]
    ending = [_NORMALIZE] if kinds[-1] == _NORMALIZE else []
    dense = [path for kind, path in modules if kind == _DENSE]
    if kinds != [_TRANSFORMER, _POOLING, *[_DENSE] * len(dense), *ending]:
        raise ConversionError(
            "the modules of this embedding model cannot be converted",
            where=source.path / MODULES,
            expected="Transformer, Pooling, any number of Dense, and Normalize or nothing",
            found=", ".join(kinds),
        )
    where = source.path / modules[1][1] / "config.json"
    pooling = _object(source, modules[1][1])
    _check_width(pooling, hidden_size, where)
    include = pooling.get("include_prompt", True)
    if not isinstance(include, bool):
        raise SourceError("include_prompt is no flag", where=where, found=include)
    layers = read_layers(source, dense, hidden_size)
    block = EmbeddingPostprocessor(
        pooling_mode=_pooling_mode(pooling, where),
        include_prompt=include,
        projections=tuple(layer for layer, _ in layers),
        normalize="l2" if ending else None,
        **_prompts(source),
    )
    return SentenceModules(block, tuple(tensor for _, parts in layers for tensor in parts))


def mean_of_tokens() -> SentenceModules:
    """Return what sentence-transformers adds to a model without modules: the mean of the tokens."""
    return SentenceModules(EmbeddingPostprocessor(pooling_mode="mean"), ())


def list_modules(source: Source) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module, in order; none without a `modules.json`.

    Raises:
        SourceError: The file is damaged.
    """
    content = source.content(MODULES)
    return [] if content is None else _modules(content, source.path / MODULES)


def _modules(content: bytes, where: Path) -> list[tuple[str, str]]:
    # The file is an array, and the limits of the parser are those of an object.
    listed = parse_json_object(b'{"modules": ' + content + b"}", where)["modules"]
    if not isinstance(listed, list) or not listed:
        raise SourceError("the file lists no modules", where=where, expected="a list of objects")
    modules = []
    for entry in listed:
        kind, path = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (0, 0)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise SourceError("a module has no type or no path", where=where, found=entry)
        if path and not is_plain_name(path):  # it must not lead out of the checkpoint
            raise SourceError("a module's path is not a folder", where=where, found=path)
        modules.append((kind.rpartition(".")[2], path))
    return modules


def _object(source: Source, folder: str) -> Mapping[str, Any]:
    """Return the configuration of a module."""
    name = f"{folder}/config.json" if folder else "config.json"
    return read_module(source, name)


def _check_width(pooling: Mapping[str, Any], hidden_size: int, where: Path) -> None:
    width = pooling.get("word_embedding_dimension", pooling.get("embedding_dimension", hidden_size))
    if width != hidden_size:
        raise SourceError(
            "the pooling has another width than the model",
            where=where,
            expected=hidden_size,
            found=width,
        )


def _pooling_mode(pooling: Mapping[str, Any], where: Path) -> str:
    """Return the pooling in the format's word."""
    stated = pooling.get("pooling_mode")
    if stated is None:
        names, chosen = _FLAGS, [key for key, on in pooling.items() if key in _ALL_FLAGS and on]
    else:
        names, chosen = _MODES, [str(value) for value in _listed(stated)]
    mode = names.get(chosen[0]) if len(chosen) == 1 else None
    if mode is None:
        raise ConversionError(
            "this pooling cannot be converted",
            where=where,
            expected="one of cls, mean and last token",
            found=", ".join(chosen) or "none",
        )
    return mode


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _prompts(source: Source) -> dict[str, Any]:
    """Return the prompts by name, and the name of the default one."""
    content = source.content(PROMPTS)
    if content is None:
        return {}
    where = source.path / PROMPTS
    settings = parse_json_object(content, where)
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise SourceError("the prompts are no texts", where=where, found=prompts)
    if name is not None and (not isinstance(name, str) or name not in prompts):
        raise SourceError(
            "the default prompt is unknown", where=where, expected=", ".join(prompts), found=name
        )
    return {"prompts": prompts, "default_prompt_name": name}
