"""The calls of tools in the text between their marks, for each form of arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rdrr_runtime.text.answer_formats import Marks, Tags
from rdrr_runtime.text.call_literals import LiteralReader

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters")

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's arguments."""


class Call(NamedTuple):
    """A call of a tool.

    Attributes:
        name: Name of the tool.
        arguments: Its arguments, an object as JSON.
    """

    name: str
    arguments: str


def read_calls(body: str, marks: Marks, schemas: Schemas) -> list[Call]:
    """Return the calls in a text; none if the text has none of the forms of the format.

    Args:
        body: The text between the marks.
        marks: The format.
        schemas: The schemas of the tools.
    """
    for form in marks.arguments:
        try:
            calls = _FORMS[form](body.strip(" \t\r\n"), marks, schemas)
        except (ValueError, RecursionError):
            continue
        if calls:
            return calls
    return []


def read_arguments(text: str) -> str:
    """Return the arguments that a text begins with, as JSON: as they are written, if that is JSON.

    Raises:
        ValueError: The text does not begin with an object.
    """
    reader = LiteralReader(text)
    reader.skip()
    begin = reader.at
    return _as_json(reader.value(), text[begin : reader.at])


def _as_json(value: Any, written: str) -> str:
    if isinstance(value, str):  # an object within a string
        value, written = _loaded(value), value
    if not isinstance(value, dict):
        raise ValueError("arguments are an object")
    try:
        if json.loads(written) == value:
            return written
    except ValueError:
        pass
    return json.dumps(value, ensure_ascii=False)


def _json(body: str, _: Marks, __: Schemas) -> list[Call]:
    reader = LiteralReader(body)
    calls: list[Call] = []
    while reader.at < len(body):
        value = reader.value()
        items = value if isinstance(value, list) else [value]
        calls += [_call(item) for item in items]
        while reader.skips(";") or reader.skips(","):
            pass
    return calls


def _call(value: Any) -> Call:
    if not isinstance(value, dict):
        raise ValueError("a call is an object")
    if isinstance(inner := value.get("function"), dict):
        value = inner
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), "")
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    if not name:
        raise ValueError("a call has a name")
    return Call(name, _as_json({} if arguments is None else arguments, ""))


def _named(body: str, marks: Marks, _: Schemas) -> list[Call]:
    head, brace, __ = body.partition("{")
    for separator in marks.separators:
        head = head.replace(separator, "\n")
    # The name stands behind the kind of the tool where a format states it.
    words = [word for word in head.split() if word != "function"]
    if not brace or not words:
        raise ValueError("a name and an object")
    return [Call(plain_name(words[0]), read_arguments(body[body.index("{") :]))]


def plain_name(name: str) -> str:
    """Return a tool's name without the namespace and the number that some formats write."""
    return name.removeprefix("functions.").partition(":")[0]


def _tags(body: str, marks: Marks, schemas: Schemas) -> list[Call]:
    assert marks.tags is not None
    tags, calls, at = marks.tags, list[Call](), 0
    while (name := _between(body, tags.name, at)) is not None:
        opening, tool = tags.name[0], name[0].strip()
        end = body.find(opening, name[1]) if opening else -1
        # A name without a mark before it ends where the first key begins, or with the text.
        begin = name[1] if opening else 0
        until = len(body) if end < 0 else end
        properties = schemas.get(tool, {}).get("properties", {})
        arguments = _tagged(body[begin:until], tags, properties)
        calls.append(Call(tool, json.dumps(arguments, ensure_ascii=False)))
        at = until
        if not opening:
            break
    return calls


def _tagged(text: str, tags: Tags, properties: Mapping[str, Any]) -> dict[str, Any]:
    arguments, at = {}, 0
    while (key := _between(text, tags.key, at)) is not None:
        value = _between(text, tags.value, key[1])
        if value is None:
            raise ValueError("a value does not end")
        written = value[0].removeprefix("\n").removesuffix("\n")
        arguments[key[0].strip()] = _typed(written, properties.get(key[0].strip()))
        at = value[1]
    return arguments


def _between(text: str, marks: tuple[str, str], at: int) -> tuple[str, int] | None:
    """Return what stands between two marks, and the position behind; None if a mark is missing."""
    begin = text.find(marks[0], at)
    if begin < 0:
        return None
    begin += len(marks[0])
    end = text.find(marks[1], begin)
    if end < 0 and not marks[0] and text[at:].strip():  # a name without arguments
        return text[at:], len(text)
    return None if end < 0 else (text[begin:end], end + len(marks[1]))


def _typed(text: str, schema: Any) -> Any:
    """Return a value that is marked by itself: text, unless the schema says something else."""
    if not isinstance(schema, Mapping):
        return text
    kinds = schema.get("type")
    stated = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(stated, list) or "string" in stated:
        return text
    try:
        return LiteralReader(text).value()
    except ValueError:
        return text


def _braces(body: str, marks: Marks, _: Schemas) -> list[Call]:
    reader, calls = LiteralReader(body, marks.quote), list[Call]()
    while reader.skips("call:"):
        name = reader.word("{")
        arguments = dict(reader.pairs("{", ":"))
        calls.append(Call(name, json.dumps(arguments, ensure_ascii=False)))
        while reader.skips(","):
            pass
    return calls


def _python(body: str, _: Marks, __: Schemas) -> list[Call]:
    reader, calls = LiteralReader(body), list[Call]()
    is_list = reader.skips("[")
    while reader.at < len(body) and not (is_list and reader.skips("]")):
        name = reader.word("([{,")
        if not _is_name(name):
            raise ValueError("a call has a name")
        arguments = dict(reader.pairs("(", "="))
        calls.append(Call(name, json.dumps(arguments, ensure_ascii=False)))
        while reader.skips(",") or reader.skips(";"):
            pass
    return calls


def _is_name(name: str) -> bool:
    return bool(name) and name.replace(".", "").replace("-", "").replace("_", "").isalnum()


def _loaded(text: str) -> Any:
    return LiteralReader(text).value()


_FORMS: Mapping[str, Callable[[str, Marks, Schemas], list[Call]]] = MappingProxyType(
    {"json": _json, "named": _named, "tags": _tags, "braces": _braces, "python": _python}
)
