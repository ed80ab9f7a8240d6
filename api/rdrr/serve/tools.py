"""The tools of a request: what a template writes about them, and the form of a forced call."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import UsageError

if TYPE_CHECKING:
    from rdrr_runtime.text.answer_formats import AnswerFormat
    from rdrr_runtime.text.chat_template import ChatTemplate

Messages = list[dict[str, Any]]
Schema = Mapping[str, Any]

MOST_TOOLS = 128

_NO_ARGUMENTS: Schema = {"type": "object", "properties": {}}
_INSTRUCTIONS = (
    "You may call tools. Each is a function with a JSON schema of its arguments:\n{tools}\n"
    'To call one, write <tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call> and nothing '
    "else; the result follows in <tool_response></tool_response>."
)
"""What the system message says where a template does not write about tools."""


@dataclass(frozen=True)
class Tools:
    """The tools that an answer may call.

    Attributes:
        schemas: The schema of each tool's arguments.
        stated: The tools as the request has them, which templates read.
        forced: The tool that the answer calls; empty for any of them; None if it need not call.
    """

    schemas: Mapping[str, Schema]
    stated: Sequence[Mapping[str, Any]]
    forced: str | None = None

    @classmethod
    def of(cls, stated: Sequence[Any] | None, choice: Any) -> Tools | None:
        """Return the tools that a request means; None for none.

        Args:
            stated: The tools.
            choice: `none`, `auto`, `required`, an object with the name of a function, or one with
                the tools that are allowed.

        Raises:
            UsageError: A tool is no function, or the choice means none of them.
        """
        choice, allowed = _allowed(choice)
        forced = _forced(choice)
        if not stated or choice == "none":
            if forced is not None:
                raise UsageError("a call is asked for, but there are no tools", where="tool_choice")
            return None
        if len(stated) > MOST_TOOLS:
            raise UsageError(
                "too many tools", expected=f"at most {MOST_TOOLS}", found=len(stated), where="tools"
            )
        functions = [_function(tool, at) for at, tool in enumerate(stated)]
        if allowed is not None:
            names = [each["name"] for each in functions]
            for name in allowed:
                _check_name(name, names)
            stated = [tool for tool, name in zip(stated, names, strict=True) if name in allowed]
            functions = [each for each in functions if each["name"] in allowed]
        schemas = {each["name"]: each.get("parameters") or _NO_ARGUMENTS for each in functions}
        if forced == "" and len(schemas) == 1:
            (forced,) = schemas
        if forced:
            _check_name(forced, schemas)
        return cls(schemas, stated, forced)

    def call_format(self, form: AnswerFormat) -> tuple[dict[str, Any], str]:
        """Return the form of a forced call, and the tool if it stands before that form.

        Args:
            form: The format of the answers.
        """
        assert self.forced is not None
        marks = form.forms
        begin = "" if marks is None or not form.states_call(self.forced) else marks.forced or ""
        if "{name}" in begin:
            return _json_schema(self.schemas[self.forced]), self.forced
        keys = ("name", "arguments") if marks is None else marks.keys
        names = [self.forced] if self.forced else list(self.schemas)
        calls = [_call(keys, name, _without_definitions(self.schemas[name])) for name in names]
        schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return _json_schema({**schema, **self._definitions(names)}), ""

    def _definitions(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the definitions that schemas refer to from the root."""
        parts = {key: [self.schemas[name].get(key, {}) for name in names] for key in _DEFINITIONS}
        return {key: _merged(values) for key, values in parts.items() if any(values)}


_DEFINITIONS = ("$defs", "definitions")


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _without_definitions(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in _DEFINITIONS}


def _json_schema(schema: Schema) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _call(keys: tuple[str, str], name: str, arguments: Schema) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {keys[0]: {"const": name}, keys[1]: arguments},
        "required": list(keys),
        "additionalProperties": False,
    }


def _check_name(name: str, names: Collection[str]) -> None:
    if name not in names:
        raise UsageError(
            "this tool is not among the tools",
            where="tool_choice",
            expected=" or ".join(names),
            found=name,
        )


def _allowed(choice: Any) -> tuple[Any, list[str] | None]:
    """Return the choice among tools, and the names of those that it allows; None for all."""
    match choice:
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [_, *_] as tools}}:
            return mode, [str(_forced(tool)) for tool in tools]
    return choice, None


def _forced(choice: Any) -> str | None:
    match choice:
        case None | "none" | "auto":
            return None
        case "required":
            return ""
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise UsageError(
        "unknown `tool_choice`",
        expected='none, auto, required or {"type": "function", "function": {"name": ...}}',
        found=choice,
    )


def _function(tool: Any, at: int) -> Mapping[str, Any]:
    match tool:
        case {"type": "function", "function": {"name": str(name)} as function} if name:
            if isinstance(function.get("parameters"), Mapping | None):
                return dict(function)
    raise UsageError(
        "only tools that are functions are served",
        where=f"tools.{at}",
        expected='{"type": "function", "function": {"name": ..., "parameters": {...}}}',
        found=tool.get("type") if isinstance(tool, Mapping) else tool,
    )


def for_template(messages: Messages, tools: Tools | None, template: ChatTemplate) -> Messages:
    """Return messages as a template reads them: the arguments of calls, and what it cannot write.

    Args:
        messages: The messages, in the form of OpenAI's API.
        tools: The tools that may be called.
        template: The template.
    """
    if template.takes_tools:
        as_text = template.takes_arguments_as_text and _has_calls(messages)
        return [_with_arguments(message, as_text=as_text) for message in messages]
    plain = [_without_calls(message) for message in messages]
    return plain if tools is None else _instructed(plain, tools)


def _has_calls(messages: Messages) -> bool:
    return any(message.get("tool_calls") for message in messages)


def _with_arguments(message: dict[str, Any], *, as_text: bool) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_converted(call, as_text=as_text) for call in calls]}


def _converted(call: Any, *, as_text: bool) -> Any:
    match call:
        case {"function": {"arguments": arguments} as function}:
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            value = written if as_text else _loaded(written)
            return {**call, "function": {**function, "arguments": value}}
    return call


def _loaded(text: str) -> Any:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _without_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose calls and results are text."""
    if message.get("role") == "tool":
        content = f"<tool_response>{message.get('content', '')}</tool_response>"
        return {"role": "user", "content": content}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    written = [_written(call.get("function", {})) for call in calls if isinstance(call, Mapping)]
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**plain, "content": "".join([message.get("content") or "", *written])}


def _written(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments", {})
    value = _loaded(arguments) if isinstance(arguments, str) else arguments
    call = json.dumps({"name": function.get("name"), "arguments": value}, ensure_ascii=False)
    return f"<tool_call>{call}</tool_call>"


def _instructed(messages: Messages, tools: Tools) -> Messages:
    """Return messages whose first one says which tools there are."""
    functions = "\n".join(json.dumps(tool["function"]) for tool in tools.stated)
    text = _INSTRUCTIONS.format(tools=functions)
    if messages[0].get("role") == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
