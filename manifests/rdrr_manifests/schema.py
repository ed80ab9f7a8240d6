"""The JSON Schema of a manifest, for editors and other tools.

It states types and ranges of single fields; what fields have to do with each other is the
business of `rdrr_manifests.rules`.
"""

from __future__ import annotations

from typing import Any

from rdrr_manifests.models import Manifest

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the current generation's `manifest.json`."""
    schema = Manifest.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": SCHEMA_DIALECT, "title": "RDRR manifest, version 1", **_untitled(schema)}


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}
