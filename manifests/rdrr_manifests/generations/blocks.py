"""Fill in defaults and translate older spellings in `inference`, `optimizations` and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from rdrr_manifests.faults import shown
from rdrr_manifests.generations.normalized import Draft, Generation, block
from rdrr_manifests.models.hints import HINT_VALUES
from rdrr_manifests.models.inference import Inference

LATE_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("output", "embeddingScale", None),
    ("output", "logitInputScale", 1.0),
    ("layerPattern", "residualBranchScale", 1.0),
)
"""Fields that were added to the current generation later, with the values that stand for them.

Each is given as block, key and value. Packages published before lack these fields.
"""

_NOT_NULL = (
    "metadata",
    "optimizations",
    "tensors",
    "shards",
    "hashAlgorithm",
    "modelType",
    "inference",
    "architecture",
)


def default_blocks(draft: Draft) -> None:
    """Fill in the fields that the generation omits, and drop `null` where it means "absent"."""
    data = draft.data
    for key in _NOT_NULL:
        if key in data and data[key] is None:
            del data[key]
    inference = data.get("inference")
    if not isinstance(inference, dict):
        return
    for part, key, value in LATE_FIELDS:
        inner = inference.get(part)
        if not isinstance(inner, dict) or key in inner:
            continue
        inner[key] = value
        if draft.generation is Generation.CURRENT:
            draft.warn(
                "late-field",
                f"inference.{part}.{key}",
                f"missing, so it was read as {'null' if value is None else '1'}",
            )
    _drop_nulls(inference, Inference)


def _drop_nulls(data: dict[str, Any], model: type[BaseModel]) -> None:
    """Remove each `null` whose field has a default other than None."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in data:
            continue
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if isinstance(data[key], dict):
                _drop_nulls(data[key], kind)
            elif data[key] is None and not field.is_required():
                del data[key]
        elif data[key] is None and not field.is_required() and field.default is not None:
            del data[key]


def read_hints(draft: Draft) -> None:
    """Translate older spellings of hints, and warn about those that are ignored."""
    data = draft.data
    optimizations = data.get("optimizations")
    for where, holder in (("", data), ("optimizations.", optimizations)):
        if isinstance(holder, dict) and "runtimeOptimizations" in holder:
            draft.warn(
                "hint-ignored",
                f"{where}runtimeOptimizations",
                "ignored, because no runtime has ever read it",
            )
    if not isinstance(optimizations, dict):
        return
    if optimizations.get("kernelHints") is None:
        optimizations.pop("kernelHints", None)
    if "kernelPath" in optimizations:
        draft.note("optimizations.kernelPath was not used: it names kernels of another runtime")
    hints = optimizations.get("kernelHints")
    if isinstance(hints, dict):
        for key in [key for key, value in hints.items() if value is None]:
            del hints[key]
    if draft.generation is Generation.DECEMBER:
        _read_december_hints(draft, optimizations)


def _read_december_hints(draft: Draft, optimizations: dict[str, Any]) -> None:
    hints = block(optimizations, "kernelHints")
    wanted = optimizations.get("attentionKernel")
    if isinstance(wanted, str) and wanted in HINT_VALUES["attentionPrefill"]:
        for key in ("attentionPrefill", "attentionDecode"):
            hints.setdefault(key, wanted)
        optimizations["kernelHints"] = hints
        draft.note("optimizations.attentionKernel was read as the two attention hints")
    value = hints.get("f16Matmul")
    if isinstance(value, str) and value in set(HINT_VALUES["q4kMatmul"]) - {"auto"}:
        # The December schema allowed the values of q4kMatmul here, where they have no meaning.
        hints["f16Matmul"] = "auto"
        draft.warn(
            "hint-ignored",
            "optimizations.kernelHints.f16Matmul",
            "the value belongs to q4kMatmul, so it was read as auto",
            found=shown(value),
        )


def eos_of(data: Mapping[str, Any]) -> Any:
    """Return the end-of-sequence id or ids from any of the fields that held them; None if none."""
    tokenizer, config = block(data, "tokenizer"), block(data, "config")
    candidates = (
        data.get("eos_token_id"),
        tokenizer.get("eosTokenId"),
        config.get("eos_token_id"),
        block(config, "text_config").get("eos_token_id"),
        config.get("tokenizer.ggml.eos_token_id"),
    )
    return next((value for value in candidates if value is not None), None)
