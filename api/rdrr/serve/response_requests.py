"""What OpenAI's `/v1/responses` reads: items, tools and formats, which become those of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from rdrr_format.errors import UsageError

from rdrr.serve.requests import Body, ChatRequest


class ResponsesRequest(Body):
    """A request for `/v1/responses`."""

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def items(self) -> list[dict[str, Any]]:
        """The input, as items."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input

    def as_chat(self, before: Sequence[Mapping[str, Any]]) -> ChatRequest:
        """Return the request as a chat.

        Args:
            before: The items of the responses before.

        Raises:
            UsageError: An item, a tool or a format is not served.
        """
        said = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return ChatRequest.model_validate(
            {
                "messages": [*said, *_messages([*before, *self.items])],
                "tools": [_tool(tool) for tool in self.tools] or None,
                "tool_choice": _choice(self.tool_choice),
                "temperature": self.temperature,
                "top_p": self.top_p,
                "max_tokens": self.max_output_tokens,
                "reasoning_effort": (self.reasoning or {}).get("effort"),
                "response_format": response_format((self.text or {}).get("format")),
            }
        )


def _messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return items as messages: what the assistant did between two others is one message."""
    messages: list[dict[str, Any]] = []
    for item in items:
        said = _said(item)
        last = messages[-1] if messages else None
        if last is not None and last["role"] == said["role"] == "assistant":
            calls = [*last.get("tool_calls", ()), *said.get("tool_calls", ())]
            messages[-1] = {**last, **{key: value for key, value in said.items() if value}}
            if calls:
                messages[-1]["tool_calls"] = calls
        else:
            messages.append(said)
    return messages


def _said(item: Mapping[str, Any]) -> dict[str, Any]:
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role"), "content": _text_parts(item.get("content"))}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            output = _text_parts(item.get("output"))
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
        case "reasoning":
            parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
            text = "".join(str(part.get("text", "")) for part in parts)
            return {"role": "assistant", "content": "", "reasoning_content": text}
        case kind:
            raise UsageError("this kind of item is not served", where="input", found=kind)


def _text_parts(content: Any) -> Any:
    """Return the content of an item as messages have it."""
    if not isinstance(content, list):
        return content
    texts = ("input_text", "output_text", "text", "refusal")
    return [
        {"type": "text", "text": part.get("text") or part.get("refusal") or ""}
        if isinstance(part, Mapping) and part.get("type") in texts
        else part
        for part in content
    ]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise UsageError("only tools that are functions are served", found=tool.get("type"))
    keys = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {key: tool[key] for key in keys if tool.get(key)}}


def _choice(choice: Any) -> Any:
    match choice:
        case {"type": "function"}:
            return {"type": "function", "function": {"name": choice.get("name")}}
        case {"type": "allowed_tools", "tools": [*tools]}:
            allowed = {"mode": choice.get("mode"), "tools": [*map(_choice, tools)]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def response_format(stated: Any) -> dict[str, Any] | None:
    """Return a format as chats have it, from one that has its schema beside its type."""
    if not isinstance(stated, Mapping) or stated.get("type") != "json_schema":
        return None if stated is None else dict(stated)
    return {"type": "json_schema", "json_schema": {"schema": stated.get("schema")}}
