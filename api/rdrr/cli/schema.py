"""`rdrr schema`: the JSON schema of a package's files, for editors and other tools."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer


def schema(
    of: Annotated[
        Literal["manifest", "report", "program"],
        typer.Option("--of", help="File that the schema is for."),
    ] = "manifest",
) -> int:
    """Print the JSON schema of manifest.json, of conversion-report.json or of a program."""
    from rdrr_manifests.schema import manifest_schema, report_schema
    from rdrr_runtime.program.files import program_schema

    schemas = {"manifest": manifest_schema, "report": report_schema, "program": program_schema}
    content = schemas[of]()
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return 0
