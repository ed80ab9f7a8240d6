"""The schema as a rule: the types and ranges of single fields.

Pydantic finds every field of the wrong type or range. So that the other rules can still run on the
rest of the manifest, refused tensor entries are left out and refused blocks are replaced by
placeholders; rules that need a refused block are skipped.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rdrr_manifests.faults import Fault, shown, tensor_field
from rdrr_manifests.models import Manifest
from rdrr_manifests.models.base import SECOND_SPELLING

_PLACEHOLDERS: Mapping[str, Any] = {
    "modelId": "unnamed",
    "quantization": "unknown",
    "totalSize": 0,
    "shards": [],
    "tensors": {},
    "architecture": {
        "numLayers": 1,
        "hiddenSize": 1,
        "intermediateSize": 1,
        "numAttentionHeads": 1,
        "numKeyValueHeads": 1,
        "headDim": 1,
        "vocabSize": 1,
        "maxSeqLen": 1,
    },
    "inference": {
        "attention": {"queryPreAttnScalar": 1.0},
        "normalization": {"rmsNormEps": 1.0},
        "ffn": {"activation": "silu"},
        "rope": {"ropeTheta": 1.0},
        "output": {},
    },
}
"""Placeholders for required blocks that were refused; they never reach a user."""

_WORDS: Mapping[str, str] = {
    "missing": "a value",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
    "finite_number": "a finite number",
}
_MESSAGES: Mapping[str, str] = {
    "missing": "the field is missing",
    SECOND_SPELLING: "the field has another name",
}
_RANGES: Mapping[str, str] = {"greater_than": "gt", "greater_than_equal": "ge"}
_SIGNS = {"gt": "more than", "ge": "at least"}


@dataclass(frozen=True)
class Parsed:
    """The part of a manifest that passed the schema.

    Attributes:
        manifest: Typed manifest; None if no part of it passed.
        faults: The faults that the schema found.
        broken: Top-level keys that were refused as a whole or in part.
        broken_tensors: Names of the tensors whose entries were left out.
    """

    manifest: Manifest | None
    faults: tuple[Fault, ...] = ()
    broken: frozenset[str] = frozenset()
    broken_tensors: frozenset[str] = frozenset()


def parse(data: Mapping[str, Any]) -> Parsed:
    """Parse a manifest of the current generation, without the parts that the schema refuses."""
    try:
        return Parsed(_validate(data))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=True)
    faults = _faults(problems, data)
    broken = frozenset(str(problem["loc"][0]) for problem in problems if problem["loc"])
    tensors = data.get("tensors")
    lost: frozenset[str] = frozenset()
    if isinstance(tensors, dict):
        lost = frozenset(
            str(problem["loc"][1])
            for problem in problems
            if len(problem["loc"]) > 1 and problem["loc"][0] == "tensors"
        )
    repaired = _repair(data, broken, lost)
    if "tensors" in broken and lost:
        broken -= {"tensors"}
    try:
        return Parsed(_validate(repaired), faults, broken, lost)
    except ValidationError:
        return Parsed(None, faults, broken, lost)


def _validate(data: Mapping[str, Any]) -> Manifest:
    # Through JSON text: in strict mode pydantic only accepts a list for a tuple field there.
    return Manifest.model_validate_json(json.dumps(data), strict=True)


def _repair(
    data: Mapping[str, Any], broken: frozenset[str], lost: frozenset[str]
) -> dict[str, Any]:
    """Return a manifest without refused keys and tensors, and with placeholders for blocks."""
    repaired = {key: value for key, value in data.items() if key not in broken}
    for key in broken & _PLACEHOLDERS.keys():
        repaired[key] = copy.deepcopy(_PLACEHOLDERS[key])
    if lost:
        repaired["tensors"] = {
            name: entry for name, entry in data["tensors"].items() if name not in lost
        }
    return repaired


def _faults(problems: Sequence[Any], data: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Return one fault for each field, which joins all that pydantic expected there."""
    merged: dict[str, tuple[list[str], str | None, str]] = {}
    for problem in problems:
        field, actual = _locate(problem["loc"], data)
        if problem["type"] == SECOND_SPELLING:
            actual = problem["ctx"]["found"]
            field = _join(field, actual)
        expected = _expected(problem)
        words, _, _ = merged.setdefault(
            field,
            (
                [],
                actual,
                _MESSAGES.get(problem["type"], "the value has the wrong type or range"),
            ),
        )
        if expected not in words:
            words.append(expected)
    return tuple(
        Fault("schema", "error", field, message, " or ".join(words), actual)
        for field, (words, actual, message) in merged.items()
    )


def _expected(problem: Mapping[str, Any]) -> str:
    kind = str(problem["type"])
    if kind == SECOND_SPELLING:
        return str(problem["ctx"]["expected"])
    if kind in _RANGES:
        limit = _RANGES[kind]
        return f"{_SIGNS[limit]} {problem.get('ctx', {}).get(limit)}"
    return _WORDS.get(kind, shown(str(problem["msg"])))


def _locate(loc: Sequence[str | int], data: Any) -> tuple[str, str | None]:
    """Return the field path of an error and the value there, without pydantic's union tags."""
    path, value, known = "", data, True
    for position, part in enumerate(loc):
        if known and _has(value, part):
            value = value[part]
        elif position == len(loc) - 1 and isinstance(value, dict) and "[" not in str(part):
            known = False  # a missing key; a name with a bracket is the tag of a union
        else:
            continue
        path = _join(path, part)
    return path, shown(value) if known else None


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _join(path: str, part: str | int) -> str:
    if isinstance(part, int):
        return f"{path}[{part}]"
    if path == "tensors":
        return tensor_field(part)
    return f"{path}.{shown(part)}" if path else shown(part)
