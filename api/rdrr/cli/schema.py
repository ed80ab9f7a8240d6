"""`rdrr schema`: the JSON schema of a package's files, for editors and other tools."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer


def schema(
    of: Annotated[
        Literal["manifest", "report"], typer.Option("--of", help="File that the schema is for.")
    ] = "manifest",
) -> int:
    """Print the JSON schema of manifest.json or conversion-report.json."""
    from rdrr_manifests.schema import manifest_schema, report_schema

    content = {"manifest": manifest_schema, "report": report_schema}[of]()
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return 0
