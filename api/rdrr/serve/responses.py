"""OpenAI's `/v1/responses`: its answers, their events, and those that are stored."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from rdrr_format.errors import RdrrError, UsageError
from starlette.responses import JSONResponse, Response

from rdrr.serve import sse
from rdrr.serve.chats import Chat, Message, Piece, ToolCall, prompt_of
from rdrr.serve.guards import error_response
from rdrr.serve.requests import now
from rdrr.serve.response_requests import ResponsesRequest
from rdrr.serve.texts import Service

MOST_STORED = 256
MOST_STORED_BYTES = 32 << 20
"""Most responses that are kept, and most bytes of them as JSON; the oldest ones go first."""


@dataclass(frozen=True)
class _Stored:
    """A response that is kept, with the items of its conversation."""

    body: dict[str, Any]
    input: list[dict[str, Any]]
    items: list[dict[str, Any]]
    size: int


@dataclass
class Responses:
    """The routes of `/v1/responses`, and what they keep in memory.

    Attributes:
        replica: Name of the server among several, which its ids carry; empty for the only one.
    """

    replica: str = ""
    _stored: OrderedDict[str, _Stored] = field(default_factory=OrderedDict)

    async def create(self, service: Service, request: ResponsesRequest) -> Response:
        """Answer `/v1/responses`."""
        request, before = self._continued(request)
        if before is None:
            return _missing(str(request.previous_response_id))
        chat = await Chat.begin(service, request.as_chat(before))
        name = _PREFIX + (f"{self.replica}_" if self.replica else "") + uuid4().hex
        answer = _Answer(service.name, name, request, chat)
        if request.stream:
            return sse.stream(self._stream(answer, before))
        await chat.read()
        return JSONResponse(self._ended(answer, before))

    async def input_tokens(self, service: Service, request: ResponsesRequest) -> Response:
        """Answer `/v1/responses/input_tokens`: the tokens of the prompt of a response."""
        request, before = self._continued(request)
        if before is None:
            return _missing(str(request.previous_response_id))
        prompt = await prompt_of(service, request.as_chat(before))
        count = len(prompt.rendered.ids)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": count})

    def _continued(
        self, request: ResponsesRequest
    ) -> tuple[ResponsesRequest, list[dict[str, Any]] | None]:
        """Return a request without references, and the items of the responses before.

        These are None if the previous response is not kept.
        """
        previous = request.previous_response_id
        if previous is not None and previous not in self._stored:
            return request, None
        before = [] if previous is None else self._stored[previous].items
        return request.model_copy(update={"input": self._resolved(request.items)}), before

    def _resolved(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return items, with those that answers had in place of references to them.

        Raises:
            UsageError: An item that is referred to is not kept.
        """
        if not any(item.get("type") == "item_reference" for item in items):
            return [*items]
        outputs = [stored.body["output"] for stored in self._stored.values()]
        known = {item["id"]: item for output in outputs for item in output}
        return [_referred(item, known) for item in items]

    async def get(self, name: str) -> Response:
        """Answer a request for a response."""
        return JSONResponse(self._stored[name].body) if name in self._stored else _missing(name)

    async def delete(self, name: str) -> Response:
        """Forget a response."""
        if self._stored.pop(name, None) is None:
            return _missing(name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def cancel(self, name: str) -> Response:
        """Refuse to cancel a response: those that are kept have ended."""
        if name not in self._stored:
            return _missing(name)
        message = "only responses with `background` can be cancelled, and this server has none"
        return error_response(400, message, "invalid_request_error")

    async def input_items(self, name: str) -> Response:
        """Answer a request for the input of a response."""
        if name not in self._stored:
            return _missing(name)
        items = self._stored[name].input
        return JSONResponse({"object": "list", "data": items, "has_more": False})

    async def _stream(
        self, answer: _Answer, before: Sequence[dict[str, Any]]
    ) -> AsyncIterator[str]:
        try:
            for name in ("response.created", "response.in_progress"):
                yield answer.event(name, response=answer.body("in_progress"))
            async for news in answer.chat.news():
                if news is None:
                    yield sse.WAITING
                    continue
                for piece in news.pieces:
                    for event in answer.add(piece):
                        yield event
            for event in answer.close():
                yield event
            body = self._ended(answer, before)
            yield answer.event(f"response.{body['status']}", response=body)
        except RdrrError as error:
            failure = {"code": "server_error", "message": str(error)}
            body = {**answer.body("failed"), "error": failure}
            yield answer.event("response.failed", response=body)
        finally:
            answer.chat.close()

    def _ended(self, answer: _Answer, before: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the whole response, and keep it."""
        body = answer.body(answer.status)
        if answer.request.store is not False:
            items = answer.request.items
            size = len(json.dumps([body, items, *before]))
            kept = _Stored(body, _named(items), [*before, *items, *body["output"]], size)
            self._stored[body["id"]] = kept
            while len(self._stored) > MOST_STORED or self._size > MOST_STORED_BYTES:
                self._stored.popitem(last=False)
        return body

    @property
    def _size(self) -> int:
        return sum(stored.size for stored in self._stored.values())


class _Answer:
    """A response as it grows.

    Args:
        model: Name of the model.
        name: The id of the response.
        request: The request.
        chat: The chat that answers it.
    """

    def __init__(self, model: str, name: str, request: ResponsesRequest, chat: Chat) -> None:
        self.request, self.chat = request, chat
        self._model, self._id, self._created = model, name, now()
        self._replica = replica_of(name)
        self._number = 0
        self._ids: list[str] = []
        self._open: Piece | None = None

    @property
    def _message(self) -> Message:
        return self.chat.messages[0]

    @property
    def status(self) -> str:
        """Whether the response is `completed` or `incomplete`."""
        return "incomplete" if self._message.answer.finish == "length" else "completed"

    def body(self, status: str) -> dict[str, Any]:
        """Return the response."""
        request, answer = self.request, self._message.answer
        is_cut, is_ended = status == "incomplete", status != "in_progress"
        prompt, new = answer.prompt_tokens, len(answer.ids)
        thoughts = self.chat.model.encode_as_is(self._message.reasoning) if is_ended else []
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": new,
            "output_tokens_details": {"reasoning_tokens": min(len(thoughts), new)},
            "total_tokens": prompt + new,
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": now() if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": self._model,
            "output": self._output() if is_ended else [],
            "max_tool_calls": None,
            "parallel_tool_calls": True,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": (request.reasoning or {}).get("effort"), "summary": None},
            "service_tier": "default",
            "store": request.store is not False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": request.text or {"format": {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": [{**_TOOL, **tool} for tool in request.tools],
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_logprobs": 0,
            "truncation": "disabled",
            "usage": usage if is_ended else None,
            "metadata": request.metadata or {},
            "safety_identifier": None,
            "prompt_cache_key": None,
        }

    def add(self, piece: Piece) -> Iterator[str]:
        """Yield the events of a new part."""
        text = piece.arguments if isinstance(piece, ToolCall) else piece.text
        if self._open is None or isinstance(piece, ToolCall) or _kind(self._open) != _kind(piece):
            yield from self.close()
            self._open = piece
            item = _item(piece, self._item_id(len(self._ids)), "in_progress", is_empty=True)
            yield self._item_event("added", item)
            if _kind(piece) != "function_call":
                yield self._part_event("added", "")
        yield self._text_event("delta", delta=text)

    def close(self) -> Iterator[str]:
        """Yield the end of the open part."""
        if self._open is None:
            return
        piece = self._message.pieces[len(self._ids) - 1]
        key = "arguments" if isinstance(piece, ToolCall) else "text"
        text = piece.arguments if isinstance(piece, ToolCall) else piece.text
        yield self._text_event("done", **{key: text})
        if not isinstance(piece, ToolCall):
            yield self._part_event("done", text)
        yield self._item_event("done", _item(piece, self._ids[-1], "completed"))
        self._open = None

    def event(self, name: str, **fields: Any) -> str:
        """Return an event."""
        number, self._number = self._number, self._number + 1
        return sse.data({"type": name, "sequence_number": number, **fields}, name)

    def _output(self) -> list[dict[str, Any]]:
        status = self.status
        return [
            _item(piece, self._item_id(at), status) for at, piece in enumerate(self._message.pieces)
        ]

    def _item_id(self, at: int) -> str:
        while len(self._ids) <= at:
            self._ids.append((f"{self._replica}_" if self._replica else "") + uuid4().hex)
        return self._ids[at]

    def _item_event(self, name: str, item: dict[str, Any]) -> str:
        at = len(self._ids) - 1
        return self.event(f"response.output_item.{name}", output_index=at, item=item)

    def _part_event(self, name: str, text: str) -> str:
        assert self._open is not None
        part = _content(_kind(self._open), text)
        return self.event(f"response.content_part.{name}", **self._place(), part=part)

    def _text_event(self, name: str, **fields: Any) -> str:
        assert self._open is not None
        kind = _kind(self._open)
        place = self._place()
        if kind == "function_call":
            del place["content_index"]
        extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return self.event(f"{_EVENTS[kind]}.{name}", **place, **fields, **extra)

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        at = len(self._ids) - 1
        name = _PREFIXES[_kind(self._open)] + self._ids[at]
        return {"item_id": name, "output_index": at, "content_index": 0}


_PREFIX = "resp_"
_TOOL = {"description": None, "parameters": None, "strict": None}
_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}
_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}


def _kind(piece: Piece) -> str:
    if isinstance(piece, ToolCall):
        return "function_call"
    return "reasoning" if piece.kind == "reasoning" else "message"


def _content(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(piece: Piece, name: str, status: str, *, is_empty: bool = False) -> dict[str, Any]:
    kind = _kind(piece)
    head = {"id": _PREFIXES[kind] + name, "type": kind, "status": status}
    if isinstance(piece, ToolCall):
        arguments = "" if is_empty else piece.arguments
        return {**head, "call_id": piece.id, "name": piece.name, "arguments": arguments}
    content = [] if is_empty else [_content(kind, piece.text)]
    if kind == "reasoning":
        return {**head, "summary": [], "content": content}
    return {**head, "role": "assistant", "content": content}


def _named(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return items with ids."""
    return [{"id": f"item_{uuid4().hex}", "type": "message", **item} for item in items]


def _referred(item: dict[str, Any], known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    if item.get("type") != "item_reference":
        return item
    name = str(item.get("id"))
    if name not in known:
        raise UsageError("there is no such item", where="input", found=name)
    return known[name]


def replica_of(name: str) -> str:
    """Return the replica that keeps a response or an item; empty if there is only one server."""
    return name.partition("_")[2].rpartition("_")[0]


def keeper_of(path: str, body: bytes) -> str:
    """Return the replica that keeps what a request is about or goes on with; empty for any.

    Args:
        path: The path of the request.
        body: Its body, which is read only if it may state a response or an item of one.
    """
    _, _, rest = path.partition("/v1/responses/")
    if rest:
        return replica_of(rest.partition("/")[0])
    if not any(word in body for word in (b"previous_response_id", b"item_reference")):
        return ""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    match fields:
        case {"previous_response_id": str(name)}:
            return replica_of(name)
        case {"input": [*items]}:
            return next(filter(None, map(_keeper_of_item, items)), "")
    return ""


def _keeper_of_item(item: Any) -> str:
    match item:
        case {"type": "item_reference", "id": str(name)}:
            return replica_of(name)
    return ""


def _missing(name: str) -> JSONResponse:
    message = f"there is no response {name}"
    return error_response(404, message, "invalid_request_error", "response_not_found")
