"""Options of drawing tokens that need reading: biases and what a text must be."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdrr_format.errors import UsageError


def split_biases(given: Sequence[str] | None) -> dict[int, float]:
    """`ID=VALUE` words as a mapping.

    Raises:
        UsageError: Another word, or an id that is given twice.
    """
    biases: dict[int, float] = {}
    for word in given or ():
        key, _, value = word.partition("=")
        try:
            token_id, bias = int(key), float(value)
        except ValueError:
            raise UsageError("not a bias", expected="ID=VALUE, as in 42=-1.5", found=word) from None
        if token_id in biases:
            raise UsageError("bias of a token given twice", found=token_id)
        biases[token_id] = bias
    return biases


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
