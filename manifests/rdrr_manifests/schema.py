"""The JSON Schema of a manifest and of a conversion report, for editors and other tools.

A schema states the types and ranges of single fields; `rdrr_manifests.rules` checks how fields
relate to each other.
"""

from __future__ import annotations

from typing import Any

from rdrr_manifests.models import Manifest
from rdrr_manifests.models.base import ManifestModel
from rdrr_manifests.models.conversion_report import ConversionReport

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the current generation's `manifest.json`."""
    return _titled("RDRR manifest, version 1", Manifest)


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of `conversion-report.json`."""
    return _titled("RDRR conversion report, version 1", ConversionReport)


def _titled(title: str, model: type[ManifestModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, mode="validation")
    untitled = {key: value for key, value in schema.items() if key != "title"}
    return {"$schema": SCHEMA_DIALECT, "title": title, **untitled}
