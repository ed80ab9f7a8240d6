"""Chats: from a request to the parts of its answers, for every interface that has messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from rdrr_runtime.text.answers import Part
from starlette.concurrency import run_in_threadpool

from rdrr.serve.remote_images import RemoteImages
from rdrr.serve.requests import ChatRequest, Fetch
from rdrr.serve.texts import Answer, Service, Texts, call
from rdrr.serve.tools import Tools, for_template

if TYPE_CHECKING:
    from rdrr_runtime.text.answer_formats import AnswerFormat
    from rdrr_runtime.text.answers import AnswerReader

    from rdrr._chat_prompt import RenderedChat
    from rdrr.serve.jobs import Event

_TAGS = "<tool_call>"
"""Added to a template that does not write about tools: what it is told is this format."""


class ToolCall(NamedTuple):
    """A call of a tool, as a client sees it."""

    id: str
    name: str
    arguments: str


Piece = Part | ToolCall
"""A part of a message: text of one kind, or a call as a client sees it."""


@dataclass
class Message:
    """An assistant's message as it grows.

    Attributes:
        answer: The text and the ids that it is made of.
        pieces: Its parts, in their order.
    """

    answer: Answer
    pieces: list[Piece] = field(default_factory=list)

    @property
    def content(self) -> str:
        """What the user reads."""
        return self._text("content")

    @property
    def reasoning(self) -> str:
        """What the model thought."""
        return self._text("reasoning")

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of tools."""
        return [piece for piece in self.pieces if isinstance(piece, ToolCall)]

    @property
    def finish(self) -> str:
        """Why the message ended: `stop`, `length` or `tool_calls`."""
        return "tool_calls" if self.calls and self.answer.finish == "stop" else self.answer.finish

    def add(self, part: Part) -> Piece:
        """Add a part, and return it as a client sees it."""
        # Nine letters and digits: what the strictest templates take as an id.
        new = ToolCall(uuid4().hex[:9], part.name, part.text) if part.kind == "call" else part
        last = self.pieces[-1] if self.pieces else None
        if isinstance(new, Part) and isinstance(last, Part) and last.kind == new.kind:
            self.pieces[-1] = Part(new.kind, last.text + new.text)
        else:
            self.pieces.append(new)
        return new

    def _text(self, kind: str) -> str:
        texts = [piece for piece in self.pieces if isinstance(piece, Part)]
        return "".join(piece.text for piece in texts if piece.kind == kind)


class News(NamedTuple):
    """What an event adds to a message.

    Attributes:
        number: Number of the message.
        pieces: Its parts, in their order.
        event: The event.
    """

    number: int
    pieces: list[Piece]
    event: Event


@dataclass(frozen=True)
class ChatPrompt:
    """A chat that is ready to be answered.

    Attributes:
        rendered: The prompt.
        form: The format of the answers.
        tools: The tools that they may call.
        forced: The tool of a forced call, empty if the answer names it; None without one.
        response_format: The form that an answer must have.
    """

    rendered: RenderedChat
    form: AnswerFormat
    tools: Tools | None
    forced: str | None
    response_format: Any

    def reader(self) -> AnswerReader:
        """Return what cuts an answer into parts."""
        from rdrr_runtime.text.answers import AnswerReader

        schemas = None if self.tools is None else self.tools.schemas
        return AnswerReader(self.form, schemas, prompt=self.rendered.text, forced=self.forced)


async def prompt_of(service: Service, request: ChatRequest) -> ChatPrompt:
    """Return the prompt of a chat.

    Raises:
        RdrrError: The request or its messages are wrong.
    """
    prompt = await run_in_threadpool(_prompt_of, service, request)
    if not prompt.rendered.images:
        return prompt
    ids = await call(service, lambda model: model._with_images(prompt.rendered))
    return replace(prompt, rendered=replace(prompt.rendered, ids=ids))


def _prompt_of(service: Service, request: ChatRequest) -> ChatPrompt:
    from rdrr_runtime.text.answer_formats import recognise

    tools = Tools.of(request.tools, request.tool_choice)
    template = service.model.chat_template(service.template, tools=tools is not None)
    takes_tools = template.takes_tools
    form = recognise(template.source + ("" if takes_tools or tools is None else _TAGS))
    forced, wanted = None, request.response_format
    if tools is not None and tools.forced is not None:
        # The form of a message does not hold for an answer that is a call.
        wanted, forced = tools.call_format(form)
    fetch = None if service.network is None else RemoteImages(service.network).fetch
    messages, prefill = _split(request, fetch)
    chosen = None if tools is None else tools.forced

    def opening(text: str) -> str:
        return form.opening(text, forced=chosen) if _is_form(wanted) else ""

    rendered = service.model._render_chat(
        for_template(messages, tools, template),
        tools=tools.stated if tools is not None and takes_tools else None,
        template=service.template,
        variables=request.variables,
        opening=opening,
        prefill=prefill,
    )
    return ChatPrompt(rendered, form, tools, forced, wanted)


def _is_form(response_format: Any) -> bool:
    return response_format is not None and response_format.get("type") != "text"


def _split(request: ChatRequest, fetch: Fetch | None) -> tuple[list[dict[str, Any]], str]:
    """Return the messages, and the beginning of the answer if the last one is that."""
    messages = request.plain_messages(fetch)
    last = messages[-1]
    begins = last["role"] == "assistant" and not last.get("tool_calls") and len(messages) > 1
    if begins and request.continue_final_message is not False:
        return messages[:-1], last["content"]
    return messages, ""


class Chat:
    """The answers to a chat.

    Args:
        service: Generates them.
        request: The request.
        prompt: Its prompt.

    Attributes:
        model: The model.
        texts: The texts of the answers.
        messages: The messages, as far as they have come.

    Raises:
        BusyError: Too many texts wait.
        RdrrError: The prompt or an option is wrong.
    """

    def __init__(self, service: Service, request: ChatRequest, prompt: ChatPrompt) -> None:
        self.model = service.model
        self.texts = Texts(
            service,
            request,
            [prompt.rendered.ids],
            request.max_completion_tokens or request.max_tokens,
            stop_ids=prompt.rendered.ends,
            logprobs=request.top,
            response_format=prompt.response_format,
            shows=prompt.form.shows,
        )
        self._readers = [prompt.reader() for _ in self.texts.jobs]
        self.messages = [Message(Answer(len(job.prompt))) for job in self.texts.jobs]

    @classmethod
    async def begin(cls, service: Service, request: ChatRequest) -> Chat:
        """Return the chat of a request, whose answers are generated from now on."""
        return cls(service, request, await prompt_of(service, request))

    async def news(self) -> AsyncIterator[News | None]:
        """Yield what each event adds; None where nothing has happened for long.

        Raises:
            RdrrError: A text has failed.
        """
        async for arrived in self.texts.events():
            if arrived is None:
                yield None
                continue
            number, event = arrived
            message, reader = self.messages[number], self._readers[number]
            message.answer.add(event)
            parts = reader.feed(event.text) + (reader.end() if event.is_last else [])
            yield News(number, [message.add(part) for part in parts], event)

    async def read(self) -> list[Message]:
        """Return all messages.

        Raises:
            RdrrError: A text has failed.
        """
        async for _ in self.news():
            pass
        return self.messages

    def close(self) -> None:
        """End the texts that are not complete."""
        self.texts.close()
