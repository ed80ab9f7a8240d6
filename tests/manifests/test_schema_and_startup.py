"""The JSON Schema agrees with the models, and importing the package stays cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rdrr_manifests.schema import SCHEMA_DIALECT, manifest_schema, report_schema
from support.manifests import valid_manifest

HEAVY = ("torch", "numba", "wgpu", "fsspec", "tokenizers", "transformers")


def test_the_schema_has_every_field_under_its_public_name() -> None:
    schema = manifest_schema()
    assert schema["$schema"] == SCHEMA_DIALECT
    assert set(valid_manifest()) <= set(schema["properties"])
    assert set(schema["required"]) == {
        "modelId",
        "quantization",
        "architecture",
        "inference",
        "totalSize",
        "shards",
        "tensors",
    }
    hints = schema["$defs"]["KernelHints"]["properties"]
    assert "q4kMatmul" in hints


def test_the_schema_is_deterministic() -> None:
    assert manifest_schema() == manifest_schema()


def test_the_copy_in_the_documentation_equals_the_output_of_rdrr_schema() -> None:
    copy = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
    text = json.dumps(manifest_schema(), indent=2, ensure_ascii=False) + "\n"
    assert copy.read_text(encoding="utf-8") == text, f"run: rdrr schema > docs/{copy.name}"


def test_the_schema_of_a_report_differs_from_that_of_a_manifest() -> None:
    assert {"tensors", "byDtype", "notes"} <= set(report_schema()["properties"])
    assert report_schema() != manifest_schema()


def test_validating_imports_no_heavy_packages() -> None:
    code = (
        "import sys; import rdrr_manifests.package; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert run.stdout.strip() == "[]"
