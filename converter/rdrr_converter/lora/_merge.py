"""Merging an adapter into a checkpoint; every tensor of the adapter is used or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.magnitudes import measure_finite
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.lora._config import AdapterConfig, read_adapter_config
from rdrr_converter.lora._deltas import MISFIT, merged_bias, merged_weight
from rdrr_converter.lora._weights import read_adapter_weights

_EMBEDDING = {"embedding_A", "embedding_B"}
_WRAPPERS = ("model", "language_model", "text_model", "transformer")
"""Optional first components of the name of a module, which are ignored in comparisons."""

_TEXT, _SIZE = "text_config", "vocab_size"
_HEAD, _HEADS = "lm_head.weight", ("lm_head.weight", "embed_out.weight")
_EMBEDS = ("embed_tokens.weight", "embed_in.weight", "wte.weight")


def merge_adapter(
    source: Source, folder: Path, is_transposed: Callable[[str], bool] | None = None
) -> Source:
    """Return the checkpoint with a LoRA adapter merged into it.

    Args:
        source: The checkpoint of the base.
        folder: Folder of the adapter, with its configuration and weights.
        is_transposed: Returns whether the base stores a weight as [inputs, outputs], given its
            name; None if it stores none like that.

    Raises:
        SourceError: The folder holds no adapter, or one that cannot be merged or that belongs to
            another base.
    """
    config = read_adapter_config(folder, follow_links=source.follow_links)
    weights = read_adapter_weights(folder)
    names = _Names(source.tensors, folder)
    tensors = dict(source.tensors)
    changed: set[str] = set()
    for name, tensor in weights.replaced.items():
        known = names.find(name, missing=_HEAD)
        _check_replacement(tensor, source.tensors.get(known))
        tensors[known] = replace(tensor, name=known, note="of the adapter")
        changed.add(known)
    resized = _with_rows(source.config, tensors, changed)
    names = _Names(tensors, folder)
    for module, parts in weights.parts.items():
        merged = _merged(module, parts, config, tensors, names, is_transposed)
        tensors |= merged
        changed |= set(merged)
    if not config.ties_head and not any(name.endswith(_HEADS) for name in tensors):
        _refuse_change_of_tied_embedding(changed, config)
    plural = "tensors" if len(changed) != 1 else "tensor"
    note = f"LoRA adapter of rank {config.rank}: {len(changed)} {plural} changed"
    return replace(source, config=resized, tensors=tensors, notes=(*source.notes, note))


def _check_replacement(tensor: SourceTensor, base: SourceTensor | None) -> None:
    """Check that a tensor differs from the one that it replaces in the number of rows at most."""
    if base is not None:
        tensor.need_shape((*(tensor.shape or base.shape)[:1], *base.shape[1:]), MISFIT, None)


def _with_rows(
    config: Mapping[str, Any], tensors: Mapping[str, SourceTensor], replaced: Collection[str]
) -> Mapping[str, Any]:
    """Return the configuration with the rows of an embedding that the adapter replaces.

    An adapter that was trained with more tokens brings the whole embedding and the head.
    """
    rows = [tensors[name].rows for name in replaced if name.endswith(_EMBEDS)]
    nested = config.get(_TEXT)
    stated = nested if isinstance(nested, dict) and _SIZE in nested else config
    if not rows or stated.get(_SIZE) == rows[0]:
        return config
    grown = {**stated, _SIZE: rows[0]}
    return {**config, _TEXT: grown} if stated is nested else grown


def _merged(
    module: str,
    parts: Mapping[str, SourceTensor],
    config: AdapterConfig,
    tensors: Mapping[str, SourceTensor],
    names: _Names,
    is_transposed: Callable[[str], bool] | None,
) -> dict[str, SourceTensor]:
    """Return the merged tensors of one module, by their names in the checkpoint."""
    embeds = set(parts) >= _EMBEDDING
    pair = ("embedding_A", "embedding_B") if embeds else ("B", "A")
    allowed = {*pair, "magnitude_vector"} if config.uses_dora and not embeds else {*pair}
    extra = set(parts) - allowed - ({"B.bias"} if not embeds else set())
    if (
        extra
        or not set(pair) <= set(parts)
        or (config.uses_dora and "magnitude_vector" not in parts)
    ):
        raise SourceError(
            "a module of the adapter cannot be merged",
            where=f"{config.where.parent}, {module}",
            expected="lora_A and lora_B"
            + (", and the magnitude vector of a linear layer" * config.uses_dora),
            found=", ".join(sorted(parts)),
        )
    known = names.find(f"{module}.weight")
    swapped = not embeds and is_transposed is not None and is_transposed(known)
    if swapped and config.uses_dora:
        raise SourceError(
            "DoRA cannot be merged into a weight that is stored as [inputs, outputs]",
            where=f"{config.where.parent}, {module}",
        )
    _check_ranks([parts[part] for part in sorted(pair)], module, config)
    left, right = (parts[part] for part in (pair[::-1] if swapped else pair))
    scale = config.scale_of(module)
    weight = merged_weight(
        tensors[known],
        left,
        right,
        scale,
        transposed=embeds or swapped,
        magnitudes=parts.get("magnitude_vector"),
    )
    merged = {known: weight}
    if "B.bias" in parts:
        bias = names.find(f"{module}.bias")
        merged[bias] = merged_bias(tensors[bias], parts["B.bias"], scale)
    for part in parts.values():
        measure_finite(part)  # later, an infinity would be reported as a fault of the base
    return merged


def _check_ranks(pair: Sequence[SourceTensor], module: str, config: AdapterConfig) -> None:
    """Check the ranks of A [rank, ...] and B [..., rank]."""
    rank = config.rank_of(module)
    for tensor, dimension in zip(pair, (0, 1), strict=True):
        if tensor.shape[dimension] != rank:
            raise SourceError(
                "the rank of the adapter's matrices differs from its configuration",
                where=tensor.where,
                expected=rank,
                found=f"{tensor.shape[dimension]} in {list(tensor.shape)}",
            )


def _refuse_change_of_tied_embedding(changed: set[str], config: AdapterConfig) -> None:
    """Refuse a changed embedding that is tied to a head, which was not trained with the change."""
    embeddings = [name for name in changed if name.endswith(_EMBEDS)]
    if embeddings:
        raise SourceError(
            "the adapter changes the embedding, but not the head that is tied to it",
            where=config.where,
            expected="ensure_weight_tying, or a checkpoint with a separate head",
            found=embeddings[0],
            hint="save the base with a separate lm_head.weight",
        )


class _Names:
    """A lookup of the adapter's tensor names among those of the checkpoint."""

    def __init__(self, tensors: Mapping[str, SourceTensor], folder: Path) -> None:
        self._folder = folder
        self._known = {_without_wrappers(name): name for name in tensors}

    def find(self, name: str, missing: str | None = None) -> str:
        """Return the checkpoint's name of a tensor.

        Args:
            name: The adapter's name of it.
            missing: A name that need not be in the checkpoint.

        Raises:
            SourceError: The checkpoint has no such tensor.
        """
        known = self._known.get(_without_wrappers(name))
        if known is not None:
            return known
        if name == missing:
            return name
        raise SourceError(
            "the adapter changes a tensor that the checkpoint does not have",
            where=self._folder,
            expected="an adapter of this checkpoint",
            found=name,
        )


def _without_wrappers(name: str) -> str:
    """Return a name without the names of the models that wrap the module."""
    first, _, rest = name.partition(".")
    return _without_wrappers(rest) if first in _WRAPPERS and rest else name
