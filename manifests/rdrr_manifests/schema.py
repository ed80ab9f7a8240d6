"""The JSON Schema of a manifest and of a conversion report, for editors and other tools.

A schema states the types and ranges of single fields; `rdrr_manifests.rules` checks how fields
relate to each other. The descriptions of fields are those of the models' docstrings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any

from pydantic import BaseModel

from rdrr_manifests.models import Manifest
from rdrr_manifests.models.base import ManifestModel
from rdrr_manifests.models.conversion_report import ConversionReport

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the current generation's `manifest.json`."""
    return described_schema("RDRR manifest, version 1", Manifest)


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of `conversion-report.json`."""
    return described_schema("RDRR conversion report, version 1", ConversionReport)


def described_schema(
    title: str, model: type[BaseModel], base: type[BaseModel] = ManifestModel
) -> dict[str, Any]:
    """Return the JSON Schema of a model with the descriptions of its docstrings.

    Args:
        title: Title of the schema.
        model: The model.
        base: The class from which it and all its parts inherit.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    _describe(schema, model)
    models = {block.__name__: block for block in _blocks(base)}
    for name, block in schema["$defs"].items():
        _describe(block, models[name])
    untitled = {key: value for key, value in schema.items() if key != "title"}
    return {"$schema": SCHEMA_DIALECT, "title": title, **untitled}


def _blocks(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for block in model.__subclasses__():
        yield block
        yield from _blocks(block)


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Put the docstring's line of each attribute into the schema of its field."""
    text, _, attributes = cleandoc(model.__doc__ or "").partition("Attributes:\n")
    spelled = {name: field.alias or name for name, field in model.model_fields.items()}
    schema["description"] = _in_json_names(text.strip(), spelled)
    for match in re.finditer(r"^    (\w+): (.+(?:\n     +.+)*)", attributes, re.MULTILINE):
        description = _in_json_names(" ".join(match[2].split()), spelled)
        field = schema["properties"][spelled[match[1]]]
        if "$ref" in field:  # the keys beside a reference are its own in this dialect
            field["description"] = description
        else:
            schema["properties"][spelled[match[1]]] = {"description": description, **field}


def _in_json_names(text: str, spelled: Mapping[str, str]) -> str:
    """Return a description with names of fields and null as JSON has them."""
    text = re.sub(r"\bNone\b", "null", text)
    return re.sub(r"`(\w+)`", lambda match: f"`{spelled.get(match[1], match[1])}`", text)
