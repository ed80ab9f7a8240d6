"""Anthropic's `/v1/messages`: what it reads, as a chat, and its answers, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field
from rdrr_format.errors import RdrrError, UsageError
from starlette.responses import JSONResponse, Response

from rdrr.serve import sse
from rdrr.serve.chats import Chat, Message, News, Piece, ToolCall, prompt_of
from rdrr.serve.requests import MOST_STOPS, Body, ChatRequest, image_part
from rdrr.serve.response_requests import response_format
from rdrr.serve.texts import Service

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class OutputConfig(Body):
    """What a request says about the answer."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class CountRequest(Body):
    """A request for `/v1/messages/count_tokens`."""

    model: str | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None

    def as_chat(self, **options: Any) -> ChatRequest:
        """Return the request as a chat.

        Args:
            options: Further fields of the chat.

        Raises:
            UsageError: A part of a message is not served.
        """
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [said for message in self.messages for said in _said(message)]
        variables = {}
        if self.thinking is not None:
            variables = {"enable_thinking": self.thinking.get("type") != "disabled"}
        return ChatRequest(
            messages=[*system, *messages],
            tools=None if self.tools is None else [_tool(tool) for tool in self.tools],
            tool_choice=_choice(self.tool_choice),
            chat_template_kwargs=variables,
            **options,
        )


class MessagesRequest(CountRequest):
    """A request for `/v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[str], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None

    def as_chat(self, **options: Any) -> ChatRequest:
        """See `CountRequest.as_chat`."""
        config = self.output_config or OutputConfig()
        return super().as_chat(
            reasoning_effort=config.effort,
            response_format=response_format(config.format or self.output_format),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            **options,
        )


async def count_tokens(service: Service, request: CountRequest) -> Response:
    """Answer `/v1/messages/count_tokens`."""
    prompt = await prompt_of(service, request.as_chat())
    return JSONResponse({"input_tokens": len(prompt.rendered.ids)})


async def messages(service: Service, request: MessagesRequest) -> Response:
    """Answer `/v1/messages`."""
    chat = await Chat.begin(service, request.as_chat())
    if request.stream:
        return sse.stream(_stream(service.name, chat))
    (message,) = await chat.read()
    return JSONResponse(
        {
            **_head(service.name, message),
            "content": [_block(piece) for piece in message.pieces],
            **_reason(message),
        }
    )


def _said(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message as chats have it: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise UsageError("unknown role of a message", expected="user or assistant", found=role)
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise UsageError("the content of a message is text or a list of blocks", found=content)
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for block in blocks:
        kinds.setdefault(str(block.get("type")), []).append(block)
    for block in kinds.pop("tool_result", []):
        yield {
            "role": "tool",
            "tool_call_id": block.get("tool_use_id"),
            "content": block.get("content") or "",
        }
    for kind in ("text", "image"):  # they stay in their common order
        kinds.pop(kind, None)
    parts = [part for block in blocks if (part := _part(block)) is not None]
    said: dict[str, Any] = {"role": role, "content": parts}
    if thoughts := kinds.pop("thinking", []):
        said["reasoning_content"] = "".join(str(block.get("thinking")) for block in thoughts)
    kinds.pop("redacted_thinking", None)
    if calls := kinds.pop("tool_use", []):
        said["tool_calls"] = [_history_call(block) for block in calls]
    if kinds:
        raise UsageError(
            "a part of a message is not served", expected="text", found=next(iter(kinds))
        )
    if said["content"] or len(said) > 2:
        yield said


def _part(block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a block of text, or an image as chats have it; None for other blocks."""
    if block.get("type") != "image":
        return block if block.get("type") == "text" else None
    source = block.get("source")
    source = source if isinstance(source, Mapping) else {}
    if source.get("type") == "url":
        return {"type": "image_url", "image_url": source.get("url")}
    if source.get("type") != "base64":
        raise UsageError(
            "only images in base64 are served",
            where="messages",
            expected="source.type base64",
            found=source.get("type"),
        )
    return image_part(f"data:{source.get('media_type')};base64,{source.get('data')}")


def _history_call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input", {}))}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        raise UsageError("tools of the service are not served", found=tool["type"])
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if "description" in tool:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(choice: Mapping[str, Any] | None) -> Any:
    if choice is None:
        return None
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _CHOICES.get(str(choice.get("type")), choice)


def _head(model: str, message: Message) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": _usage(message),
    }


def _usage(message: Message) -> dict[str, Any]:
    answer = message.answer
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": len(answer.ids),
        **dict.fromkeys(_NOT_COUNTED),
    }


_NOT_COUNTED = (
    "cache_creation", "cache_creation_input_tokens", "inference_geo",
    "output_tokens_details", "server_tool_use", "service_tier",
)  # fmt: skip
"""Counts of the service that this server has not; its schema wants them."""


def _reason(message: Message) -> dict[str, Any]:
    stop = message.answer.stop
    reason = "stop_sequence" if stop is not None else _REASONS[message.finish]
    return {"stop_reason": reason, "stop_sequence": stop}


def _block(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, ToolCall):
        name, arguments = piece.name, json.loads(piece.arguments)
        head = {"type": "tool_use", "id": f"toolu_{piece.id}", "caller": {"type": "direct"}}
        return {**head, "name": name, "input": arguments}
    if piece.kind == "reasoning":
        return {"type": "thinking", "thinking": piece.text, "signature": ""}
    return {"type": "text", "text": piece.text, "citations": []}


_EMPTY: Mapping[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""How a block begins in a stream."""


_SIGNATURE = {"type": "signature_delta", "signature": ""}
"""The last part of thoughts, by which Anthropic's service knows that they are its own."""


async def _stream(model: str, chat: Chat) -> AsyncIterator[str]:
    (message,) = chat.messages
    blocks = _Blocks()
    try:
        yield _event("message_start", message=_head(model, message))
        async for news in chat.news():
            if news is None:
                yield _event("ping")
                continue
            for event in blocks.of(news):
                yield event
        for event in blocks.close():
            yield event
        counts = _usage(message)
        yield _event("message_delta", delta=_reason(message), usage=counts)
        yield _event("message_stop")
    except RdrrError as error:
        yield _event("error", error={"type": "api_error", "message": str(error)})
    finally:
        chat.close()


class _Blocks:
    """The blocks of a stream, of which one is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def of(self, news: News) -> Iterator[str]:
        """Yield the events of new parts."""
        for piece in news.pieces:
            block = _block(piece)
            kind = block["type"]
            if kind != self._open or kind == "tool_use":
                yield from self.close()
                self._index, self._open = self._index + 1, kind
                yield self._event("content_block_start", content_block={**block, **_EMPTY[kind]})
            yield self._event("content_block_delta", delta=_delta(piece))

    def close(self) -> Iterator[str]:
        """Yield the end of the open block."""
        if self._open == "thinking":  # clients that get none drop the thoughts from the history
            yield self._event("content_block_delta", delta=_SIGNATURE)
        if self._open is not None:
            yield self._event("content_block_stop")
            self._open = None

    def _event(self, name: str, **fields: Any) -> str:
        return _event(name, index=self._index, **fields)


def _delta(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, ToolCall):
        return {"type": "input_json_delta", "partial_json": piece.arguments}
    if piece.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": piece.text}
    return {"type": "text_delta", "text": piece.text}


def _event(name: str, **fields: Any) -> str:
    return sse.data({"type": name, **fields}, name)
