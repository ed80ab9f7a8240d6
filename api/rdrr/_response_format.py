"""The argument `response_format`, in the form that chat services use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import UsageError
from rdrr_format.options import shown

if TYPE_CHECKING:
    from rdrr_runtime.text.grammar import Grammar

EXPECTED = (
    '{"type": "json_schema", "json_schema": {"schema": {...}}}, {"type": "json_object"}, '
    '{"type": "regex", "regex": "..."}, {"type": "grammar", "grammar": "..."} or {"type": "text"}'
)


def read_response_format(given: Mapping[str, Any] | None) -> Grammar | None:
    """Return the grammar that a response format stands for; None for free text.

    Args:
        given: One of the forms in `EXPECTED`; None stands for free text.

    Raises:
        UsageError: It has none of these forms.
    """
    from rdrr_runtime.text.grammar import Grammar

    if not isinstance(given, Mapping | None):
        raise UsageError("unknown `response_format`", expected=EXPECTED, found=shown(given))
    match dict(given or {"type": "text"}):
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Grammar("json_schema", '{"type": "object"}')
        case {"type": "json_schema", "json_schema": {"schema": Mapping() | bool() as schema}}:
            return Grammar("json_schema", _as_json(schema))
        case {"type": "regex", "regex": str(pattern)}:
            return Grammar("regex", pattern)
        case {"type": "grammar", "grammar": str(grammar)}:
            return Grammar("grammar", grammar)
    raise UsageError("unknown `response_format`", expected=EXPECTED, found=shown(given))


def _as_json(schema: Mapping[str, Any] | bool) -> str:
    """Return a schema as JSON text.

    Raises:
        UsageError: The schema contains itself, or something that is not a JSON value.
    """
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError("the JSON schema is not made of JSON values", found=error) from None
