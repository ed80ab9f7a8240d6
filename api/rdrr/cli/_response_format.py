"""What a generated text must be, as `--json-schema` and `--regex` say it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rdrr_format.errors import UsageError


def read_format(json_schema: str | None, regex: str | None) -> dict[str, Any] | None:
    """The response format that `--json-schema FILE` or `--regex` ask for.

    Raises:
        UsageError: Both, or a file that is not there or not JSON.
    """
    if json_schema is not None and regex is not None:
        raise UsageError("--json-schema and --regex exclude each other")
    if regex is not None:
        return {"type": "regex", "regex": regex}
    if json_schema is None:
        return None
    try:
        content = sys.stdin.read() if json_schema == "-" else Path(json_schema).read_text("utf-8")
        schema = json.loads(content)
    except OSError as error:
        raise UsageError("no JSON schema", where=json_schema, found=error.strerror) from None
    except ValueError as error:
        raise UsageError("no JSON schema", where=json_schema, found=error) from None
    return {"type": "json_schema", "json_schema": {"schema": schema}}
