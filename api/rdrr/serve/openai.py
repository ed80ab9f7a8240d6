"""OpenAI's routes for text: what they read, and their answers, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from rdrr_format.errors import RdrrError, UsageError
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from rdrr.serve.requests import ChatRequest, CompletionRequest, Request, now
from rdrr.serve.texts import Answer, Service, Texts, usage

if TYPE_CHECKING:
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr._model import Model
    from rdrr.serve.jobs import Event

DEFAULT_TOKENS = 16
"""New tokens of `/v1/completions` where the request says nothing, as in OpenAI's API."""


class Form(Protocol):
    """The form of a route's answers.

    Attributes:
        name: What the answer is called.
        chunk: What a part of a stream is called.
        prefix: The beginning of its id.
    """

    name: str
    chunk: str
    prefix: str

    def choice(self, answer: Answer) -> dict[str, Any]:
        """Return a whole text."""
        ...

    def begin(self) -> dict[str, Any] | None:
        """Return what comes before the first part of a text; None for nothing."""
        ...

    def delta(self, event: Event) -> dict[str, Any]:
        """Return a part of a text."""
        ...


@dataclass
class ChatForm:
    """Answers of `/v1/chat/completions`.

    Attributes:
        model: The model, for the texts of tokens.
        top: Number of alternatives of each token; None without log-probabilities.
    """

    model: Model
    top: int | None
    name: str = "chat.completion"
    chunk: str = "chat.completion.chunk"
    prefix: str = "chatcmpl-"

    def choice(self, answer: Answer) -> dict[str, Any]:
        """See `Form.choice`."""
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(answer.logprobs)}

    def begin(self) -> dict[str, Any] | None:
        """See `Form.begin`."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def delta(self, event: Event) -> dict[str, Any]:
        """See `Form.delta`."""
        delta = {"content": event.text} if event.text else {}
        return {"delta": delta, "logprobs": self._logprobs(event.logprobs)}

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if self.top is None:
            return None
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, token: TokenLogprobs) -> dict[str, Any]:
        top = [self._entry(*best) for best in token.top[: self.top]]
        return {**self._entry(token.token_id, token.logprob), "top_logprobs": top}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.model.decode([token_id])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


@dataclass
class CompletionForm:
    """Answers of `/v1/completions`.

    Attributes:
        model: The model, for the texts of tokens.
        records: Whether they have log-probabilities.
        echoes: Texts of the prompts, which come first where the request asks for it.
    """

    model: Model
    records: bool
    echo: str = ""
    name: str = "text_completion"
    chunk: str = "text_completion"
    prefix: str = "cmpl-"

    def choice(self, answer: Answer) -> dict[str, Any]:
        """See `Form.choice`."""
        return {"text": self.echo + answer.text, "logprobs": self._logprobs(answer.logprobs)}

    def begin(self) -> dict[str, Any] | None:
        """See `Form.begin`."""
        return {"text": self.echo, "logprobs": None} if self.echo else None

    def delta(self, event: Event) -> dict[str, Any]:
        """See `Form.delta`."""
        return {"text": event.text, "logprobs": self._logprobs(event.logprobs)}

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not self.records:
            return None
        texts = [self.model.decode([token.token_id]) for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {self.model.decode([token_id]): logprob for token_id, logprob in token.top}
                for token in tokens
            ],
            "text_offset": [sum(map(len, texts[:at])) for at in range(len(texts))],
        }


async def complete(service: Service, request: CompletionRequest) -> Response:
    """Answer `/v1/completions`."""
    model, prompts = service.model, request.prompts
    ids = [model.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    echoes = [""] * len(ids)
    if request.echo:
        echoes = [prompt if isinstance(prompt, str) else model.decode(prompt) for prompt in prompts]
    forms = [
        CompletionForm(model, request.logprobs is not None, echo)
        for echo in echoes
        for _ in range(request.n)
    ]
    texts = Texts(
        service,
        request,
        ids,
        request.max_tokens or DEFAULT_TOKENS,
        logprobs=request.logprobs,
        response_format=request.response_format,
    )
    return await _respond(service, request, texts, forms)


async def chat(service: Service, request: ChatRequest) -> Response:
    """Answer `/v1/chat/completions`."""
    ids, ends = await prompt_of(service, request)
    top = (request.top_logprobs or 0) if request.logprobs else None
    texts = Texts(
        service,
        request,
        [ids],
        request.max_completion_tokens or request.max_tokens,
        stop_ids=ends,
        logprobs=top,
        response_format=request.response_format,
    )
    return await _respond(service, request, texts, [ChatForm(service.model, top)] * request.n)


async def prompt_of(service: Service, request: ChatRequest) -> tuple[list[int], list[int]]:
    """Return the ids of a chat's prompt, and those that end an answer."""
    tools = None if request.tool_choice == "none" else request.tools
    return await run_in_threadpool(
        lambda: service.model._chat_ids(
            request.plain_messages, tools=tools or None, variables=request.chat_template_kwargs
        )
    )


async def _respond(
    service: Service, request: Request, texts: Texts, forms: Sequence[Form]
) -> Response:
    head = {"id": forms[0].prefix + uuid4().hex, "created": now(), "model": service.name}
    if request.stream:
        parts = _stream(head, request, texts, forms)
        return StreamingResponse(parts, media_type="text/event-stream", headers=_UNBUFFERED)
    answers = await texts.read()
    choices = [
        {"index": index, **form.choice(answer), "finish_reason": answer.finish}
        for index, (form, answer) in enumerate(zip(forms, answers, strict=True))
    ]
    counts = usage(answers, request.n)
    return JSONResponse({**head, "object": forms[0].name, "choices": choices, "usage": counts})


_UNBUFFERED = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def _stream(
    head: Mapping[str, Any], request: Request, texts: Texts, forms: Sequence[Form]
) -> AsyncIterator[str]:
    """Yield a stream as server-sent events; an error within it is the last one."""
    head = {**head, "object": forms[0].chunk}
    answers = [Answer(len(job.prompt)) for job in texts.jobs]
    try:
        for index, form in enumerate(forms):
            if (begin := form.begin()) is not None:
                yield _chunk(head, index, begin, None)
        async for news in texts.events():
            if news is None:
                yield ": waiting\n\n"
                continue
            index, event = news
            answers[index].add(event)
            if event.ids or event.finish:
                yield _chunk(head, index, forms[index].delta(event), event.finish)
        if request.has_usage_chunk:
            yield _data({**head, "choices": [], "usage": usage(answers, request.n)})
        yield "data: [DONE]\n\n"
    except RdrrError as error:
        yield _data({"error": {"message": str(error), "type": "server_error", "code": None}})
    finally:
        texts.close()


def _chunk(head: Mapping[str, Any], index: int, part: Mapping[str, Any], finish: str | None) -> str:
    return _data({**head, "choices": [{"index": index, **part, "finish_reason": finish}]})


def _data(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def check_name(service: Service, request: Request) -> None:
    """Check that a request means the model that is served; one without a name means any.

    Raises:
        UsageError: It means another.
    """
    served = (service.name, *service.aliases)
    if request.model is not None and request.model not in served:
        raise UsageError(UNKNOWN_MODEL, expected=" or ".join(served), found=request.model)


UNKNOWN_MODEL = "this model is not served"
