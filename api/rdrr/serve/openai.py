"""OpenAI's routes for text: what they read, and their answers, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rdrr_format.errors import RdrrError
from starlette.responses import JSONResponse, Response

from rdrr.serve import sse
from rdrr.serve.chats import Chat, Message, Piece, ToolCall
from rdrr.serve.infill import infill_prompt
from rdrr.serve.requests import ChatRequest, CompletionRequest, Request, now
from rdrr.serve.texts import Answer, Service, Texts, call, timings, usage

if TYPE_CHECKING:
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr._model import Model
    from rdrr.serve.jobs import Event

DEFAULT_TOKENS = 16
"""New tokens of `/v1/completions` where the request says nothing, as in OpenAI's API."""


def chat_choice(model: Model, message: Message, top: int | None) -> dict[str, Any]:
    """Return a whole message of a chat.

    Args:
        model: The model, for the texts of tokens.
        message: The message.
        top: Number of alternatives of each token; None without log-probabilities.
    """
    said: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
    said["annotations"] = []
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if message.calls:
        said |= {"content": message.content or None, "tool_calls": [*map(_call, message.calls)]}
    logprobs = _chat_logprobs(model, message.answer.logprobs, top)
    return {"message": said, "logprobs": logprobs, "finish_reason": message.finish}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _chat_logprobs(
    model: Model, tokens: Sequence[TokenLogprobs], top: int | None
) -> dict[str, Any] | None:
    if top is None:
        return None

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = model._codec.token_bytes(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": [*raw]}

    content = [
        {
            **entry(token.token_id, token.logprob),
            "top_logprobs": [entry(*best) for best in token.top[:top]],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


@dataclass
class CompletionForm:
    """The form of a text of `/v1/completions`.

    Attributes:
        model: The model, for the texts of tokens.
        records: Whether it has log-probabilities.
        echo: Text of the prompt, which comes first where the request asks for it.
        echoed: The first id of that prompt, and the log-probabilities of the others.
    """

    model: Model
    records: bool
    echo: str = ""
    echoed: tuple[int, Sequence[TokenLogprobs]] | None = None

    def choice(self, answer: Answer) -> dict[str, Any]:
        """Return a whole text."""
        logprobs = self._logprobs(answer.logprobs, echoes=True)
        return {"text": self.echo + answer.text, "logprobs": logprobs}

    def begin(self) -> dict[str, Any] | None:
        """Return what comes before the first part of a text; None for nothing."""
        if not self.echo:
            return None
        return {"text": self.echo, "logprobs": self._logprobs((), echoes=True)}

    def delta(self, event: Event) -> dict[str, Any]:
        """Return a part of a text."""
        return {"text": event.text, "logprobs": self._logprobs(event.logprobs)}

    def _logprobs(
        self, tokens: Sequence[TokenLogprobs], *, echoes: bool = False
    ) -> dict[str, Any] | None:
        if not self.records:
            return None
        encode = self.model._codec.token_bytes
        texts, values, tops = list[bytes](), list[float | None](), list[dict[str, float] | None]()
        if echoes and self.echoed is not None:
            first, others = self.echoed
            texts, values, tops = [encode(first)], [None], [None]
            tokens = [*others, *tokens]
        for token in tokens:
            texts.append(encode(token.token_id))
            values.append(token.logprob)
            tops.append({_name(encode(token_id)): logprob for token_id, logprob in token.top})
        lengths = [len(text.decode(errors="replace")) for text in texts]
        return {
            "tokens": [*map(_name, texts)],
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": [*accumulate(lengths[:-1], initial=0)] if texts else [],
        }


def _name(token: bytes) -> str:
    """Return the text of a token, or its bytes where it is a part of a character.

    Different parts would all be the same replacement character otherwise.
    """
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


async def complete(service: Service, request: CompletionRequest) -> Response:
    """Answer `/v1/completions`."""
    model, prompts = service.model, request.prompts
    ids = [_ids(model, prompt, request.suffix) for prompt in prompts]
    forms = [
        form
        for prompt, tokens in zip(prompts, ids, strict=True)
        for form in [await _form(service, request, prompt, tokens)] * request.n
    ]
    answers = [Answer(len(tokens)) for tokens in ids for _ in range(request.n)]
    texts = Texts(
        service,
        request,
        [] if request.max_tokens == 0 else ids,
        request.max_tokens or DEFAULT_TOKENS,
        logprobs=request.logprobs,
        response_format=request.response_format,
    )
    head = _head(service, request, "cmpl-", "text_completion")
    if request.stream:
        parts = _completion_parts(head, request, texts, answers, forms)
        return sse.stream(_stream(parts, texts.close))
    answers = await texts.read() or answers
    choices = [
        {"index": index, **form.choice(answer), "finish_reason": answer.finish}
        for index, (form, answer) in enumerate(zip(forms, answers, strict=True))
    ]
    return JSONResponse({**head, "choices": choices, **_counts(answers, request)})


def _ids(model: Model, prompt: str | list[int], suffix: str | None) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    return infill_prompt(model, prompt, suffix) if suffix else model.encode(prompt)


async def _form(
    service: Service, request: CompletionRequest, prompt: str | list[int], ids: list[int]
) -> CompletionForm:
    model, top = service.model, request.logprobs
    if not request.echo:
        return CompletionForm(model, top is not None)
    text = prompt if isinstance(prompt, str) else model.decode(prompt)
    if top is None:
        return CompletionForm(model, records=False, echo=text)
    service.check_prompt(ids)
    recorded = await call(service, lambda lent: lent._prompt_logprobs(ids, top))
    return CompletionForm(model, records=True, echo=text, echoed=(ids[0], recorded))


async def chat(service: Service, request: ChatRequest) -> Response:
    """Answer `/v1/chat/completions`."""
    answers = await Chat.begin(service, request)
    if request.stream:
        head = _head(service, request, "chatcmpl-", "chat.completion.chunk")
        return sse.stream(_stream(_chat_parts(head, request, answers), answers.close))
    messages = await answers.read()
    choices = [
        {"index": index, **chat_choice(service.model, message, request.top)}
        for index, message in enumerate(messages)
    ]
    head = _head(service, request, "chatcmpl-", "chat.completion")
    counts = _counts([message.answer for message in messages], request)
    return JSONResponse({**head, "choices": choices, **counts})


def _counts(answers: Sequence[Answer], request: Request) -> dict[str, Any]:
    return {"usage": usage(answers, request.n), "timings": timings(answers)}


def _head(service: Service, request: Request, prefix: str, name: str) -> dict[str, Any]:
    # Where the last chunk has the counts, the others say that they have none.
    counts = {"usage": None} if request.stream and request.has_usage_chunk else {}
    return {
        **counts,
        "id": prefix + uuid4().hex,
        "object": name,
        "created": now(),
        "model": service.name,
    }


async def _completion_parts(
    head: Mapping[str, Any],
    request: Request,
    texts: Texts,
    answers: Sequence[Answer],
    forms: Sequence[CompletionForm],
) -> AsyncIterator[str]:
    for index, form in enumerate(forms):
        if (begin := form.begin()) is not None:
            yield _chunk(head, index, begin, None)
    async for news in texts.events():
        if news is None:
            yield sse.WAITING
            continue
        index, event = news
        answers[index].add(event)
        if event.ids or event.finish:
            yield _chunk(head, index, forms[index].delta(event), event.finish)
    if request.has_usage_chunk:
        yield sse.data({**head, "choices": [], **_counts(answers, request)})


async def _chat_parts(
    head: Mapping[str, Any], request: ChatRequest, answers: Chat
) -> AsyncIterator[str]:
    model = answers.model
    for index in range(len(answers.messages)):
        begin = {"role": "assistant", "content": ""}
        yield _chunk(head, index, {"delta": begin, "logprobs": None}, None)
    async for news in answers.news():
        if news is None:
            yield sse.WAITING
            continue
        message = answers.messages[news.number]
        logprobs = _chat_logprobs(model, news.event.logprobs, request.top)
        for piece in news.pieces:
            delta = _delta(piece, message)
            yield _chunk(head, news.number, {"delta": delta, "logprobs": logprobs}, None)
            logprobs = None if logprobs is None else _chat_logprobs(model, [], request.top)
        if news.event.finish or (logprobs or {}).get("content"):
            finish = message.finish if news.event.finish else None
            yield _chunk(head, news.number, {"delta": {}, "logprobs": logprobs}, finish)
    if request.has_usage_chunk:
        counts = _counts([message.answer for message in answers.messages], request)
        yield sse.data({**head, "choices": [], **counts})


def _delta(piece: Piece, message: Message) -> dict[str, Any]:
    if isinstance(piece, ToolCall):
        return {"tool_calls": [{"index": message.calls.index(piece), **_call(piece)}]}
    return {"content" if piece.kind == "content" else "reasoning_content": piece.text}


async def _stream(parts: AsyncIterator[str], close: Callable[[], None]) -> AsyncIterator[str]:
    """Yield a stream to its end; an error within it is the last event before that."""
    try:
        async for part in parts:
            yield part
    except RdrrError as error:
        yield sse.data({"error": {"message": str(error), "type": "server_error", "code": None}})
    finally:
        close()
    yield sse.DONE


def _chunk(head: Mapping[str, Any], index: int, part: Mapping[str, Any], finish: str | None) -> str:
    return sse.data({**head, "choices": [{"index": index, **part, "finish_reason": finish}]})
