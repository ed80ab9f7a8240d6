"""The response format that `--json-schema` and `--regex` ask for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rdrr_format.errors import UsageError


def read_format(json_schema: str | None, regex: str | None) -> dict[str, Any] | None:
    """Return the response format of a generation, or None where neither flag was given.

    Args:
        json_schema: Path of a file with a JSON schema; `-` reads standard input.
        regex: A regular expression that the whole text must match.

    Raises:
        UsageError: Both flags were given, or the file cannot be read or is not JSON.
    """
    if json_schema is not None and regex is not None:
        raise UsageError("--json-schema and --regex exclude each other", hint="omit one of them")
    if regex is not None:
        return {"type": "regex", "regex": regex}
    if json_schema is None:
        return None
    try:
        content = sys.stdin.read() if json_schema == "-" else Path(json_schema).read_text("utf-8")
        schema = json.loads(content)
    except OSError as error:
        raise UsageError(
            "the JSON schema cannot be read", where=json_schema, found=error.strerror
        ) from None
    except ValueError as error:
        raise UsageError("the JSON schema is not JSON", where=json_schema, found=error) from None
    return {"type": "json_schema", "json_schema": {"schema": schema}}
