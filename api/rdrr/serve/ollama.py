"""Ollama's `/api/...` routes, for the editors that speak only these."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field
from rdrr_format.errors import RdrrError, UsageError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rdrr._loaded_package import has_head
from rdrr.serve import sse
from rdrr.serve.chats import Chat, Message, Piece, ToolCall
from rdrr.serve.infill import infill_prompt, marks_of
from rdrr.serve.pool import Offer
from rdrr.serve.requests import Body, ChatRequest, CompletionRequest, image_part
from rdrr.serve.scoring import EmbeddingRequest, embedded, usage
from rdrr.serve.texts import Answer, Service, Texts, timings

if TYPE_CHECKING:
    from rdrr_manifests.models import Manifest

_OPTIONS = (
    "temperature", "top_k", "top_p", "min_p", "seed", "stop", "repeat_penalty",
    "presence_penalty", "frequency_penalty",
)  # fmt: skip
DEFAULT_TEMPERATURE = 0.8

VERSION = "0.12.0"
"""Version of Ollama whose routes these are. Editors compare it with the oldest that they take."""


class Options(Body):
    """The options of a request for text; the others are those of a chat."""

    num_predict: int = -1
    """Most new tokens; as many as fit if it is not positive."""

    @property
    def ignored(self) -> list[str]:
        """The names of the options that the server does not know."""
        return [name for name in self.model_extra or {} if name not in _OPTIONS]


class OllamaRequest(Body):
    """Fields of every request for text."""

    model: str | None = None
    stream: bool = True
    format: str | dict[str, Any] | None = None
    options: Options = Field(default_factory=Options)
    think: bool | str | None = None

    @property
    def ignored(self) -> list[str]:
        """See `Body.ignored`; the options are named too."""
        return [*super().ignored, *(f"options.{name}" for name in self.options.ignored)]

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a chat or completion that this request means."""
        stated = self.options.model_extra or {}
        known = {name: stated[name] for name in _OPTIONS if name in stated}
        if self.options.num_predict > 0:
            known["max_tokens"] = self.options.num_predict
        if self.format:
            known["response_format"] = _response_format(self.format)
        return {"temperature": DEFAULT_TEMPERATURE, "model": self.model, **known}

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        if self.think is None:
            return {}
        if isinstance(self.think, str):
            return {"reasoning_effort": self.think}
        return {"enable_thinking": self.think}


class OllamaChatRequest(OllamaRequest):
    """A request for `/api/chat`."""

    messages: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """A request for `/api/generate`."""

    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    images: list[str] | None = None


class OldEmbeddingRequest(Body):
    """A request for `/api/embeddings`, the older form of `/api/embed`."""

    model: str | None = None
    prompt: str


class ShowRequest(Body):
    """A request for `/api/show` or `/api/pull`."""

    model: str | None = Field(None, validation_alias=AliasChoices("model", "name"))


async def embed(service: Service, request: EmbeddingRequest) -> Response:
    """Answer `/api/embed`."""
    begun = perf_counter_ns()
    texts, rows = await embedded(service, request)
    counts = {"prompt_eval_count": usage(service, texts)["prompt_tokens"], "load_duration": 0}
    answer = {"model": service.name, "embeddings": rows.tolist(), **counts}
    return JSONResponse({**answer, "total_duration": perf_counter_ns() - begun})


async def embed_prompt(service: Service, request: OldEmbeddingRequest) -> Response:
    """Answer `/api/embeddings`."""
    _, (row,) = await embedded(service, EmbeddingRequest(input=request.prompt))
    return JSONResponse({"embedding": row.tolist()})


async def chat(service: Service, request: OllamaChatRequest) -> Response:
    """Answer `/api/chat`."""
    if not request.messages:
        return _loaded(service, request, {"message": {"role": "assistant", "content": ""}})
    asked = ChatRequest(
        messages=[_message(message) for message in request.messages],
        tools=request.tools,
        chat_template_kwargs=request.variables,
        **request.fields,
    )
    return await _respond(service, request, await Chat.begin(service, asked), _Chatted())


async def generate(service: Service, request: OllamaGenerateRequest) -> Response:
    """Answer `/api/generate`."""
    if request.images and (request.suffix or request.raw):
        raise UsageError("images are read with the chat template", expected="no `raw` or `suffix`")
    if request.suffix:
        ids = infill_prompt(service.model, request.prompt, request.suffix)
        return await _raw(service, request, ids)
    if request.raw:
        return await _raw(service, request, service.model.encode(request.prompt))
    if not request.prompt and not request.images:
        return _loaded(service, request, {"response": ""})
    system = [{"role": "system", "content": request.system}] if request.system else []
    said = {"role": "user", "content": request.prompt, "images": request.images}
    asked = ChatRequest(
        messages=[*system, _message(said)],
        chat_template_kwargs=request.variables,
        **request.fields,
    )
    return await _respond(service, request, await Chat.begin(service, asked), _Generated())


def _loaded(service: Service, request: OllamaRequest, said: Mapping[str, Any]) -> Response:
    """Return the answer to a request without a prompt, by which clients load or unload a model."""
    reason = "unload" if request.unloads else "load"
    line = _line(service, {**said, "done": True, "done_reason": reason})
    return Response(line, media_type="application/json")


async def _raw(service: Service, request: OllamaGenerateRequest, ids: list[int]) -> Response:
    asked = CompletionRequest(prompt=ids, **request.fields)
    options = {"response_format": asked.response_format}
    texts = Texts(service, asked, [ids], asked.max_tokens, **options)
    begun = perf_counter_ns()

    async def lines() -> AsyncIterator[str]:
        answer = Answer(len(ids))
        try:
            async for news in texts.events():
                if news is None:
                    continue
                answer.add(news[1])
                if request.stream and news[1].text:
                    yield _line(service, {"response": news[1].text, "done": False})
            text = "" if request.stream else answer.text
            yield _line(service, {"response": text, **_end(Message(answer), begun)})
        except RdrrError as error:
            yield json.dumps({"error": str(error)}) + "\n"
        finally:
            texts.close()

    return await _sent(request, lines())


class _Chatted:
    """The form of `/api/chat`."""

    def piece(self, piece: Piece) -> dict[str, Any]:
        """Return a part of an answer."""
        if isinstance(piece, ToolCall):
            said: dict[str, Any] = {"content": "", "tool_calls": [_call(piece)]}
        elif piece.kind == "reasoning":
            said = {"content": "", "thinking": piece.text}
        else:
            said = {"content": piece.text}
        return {"message": {"role": "assistant", **said}}

    def whole(self, message: Message) -> dict[str, Any]:
        """Return a whole answer."""
        said: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.reasoning:
            said["thinking"] = message.reasoning
        if message.calls:
            said["tool_calls"] = [_call(call) for call in message.calls]
        return {"message": said}


class _Generated:
    """The form of `/api/generate`."""

    def piece(self, piece: Piece) -> dict[str, Any]:
        """Return a part of an answer."""
        assert not isinstance(piece, ToolCall)
        key = "thinking" if piece.kind == "reasoning" else "response"
        return {"response": "", key: piece.text}

    def whole(self, message: Message) -> dict[str, Any]:
        """Return a whole answer."""
        thoughts = {"thinking": message.reasoning} if message.reasoning else {}
        return {"response": message.content, **thoughts}


async def _respond(
    service: Service, request: OllamaRequest, chat: Chat, form: _Chatted | _Generated
) -> Response:
    begun = perf_counter_ns()
    (message,) = chat.messages

    async def lines() -> AsyncIterator[str]:
        try:
            async for news in chat.news():
                pieces = [] if news is None or not request.stream else news.pieces
                for piece in pieces:
                    yield _line(service, {**form.piece(piece), "done": False})
            said = Message(message.answer) if request.stream else message
            yield _line(service, {**form.whole(said), **_end(message, begun)})
        except RdrrError as error:
            yield json.dumps({"error": str(error)}) + "\n"
        finally:
            chat.close()

    return await _sent(request, lines())


async def _sent(request: OllamaRequest, lines: AsyncIterator[str]) -> Response:
    if request.stream:
        return sse.stream(lines, "application/x-ndjson")
    (line,) = [line async for line in lines]
    answer = json.loads(line)
    return JSONResponse(answer, 500 if "error" in answer else 200)


def _line(service: Service, fields: Mapping[str, Any]) -> str:
    head = {"model": service.name, "created_at": _time()}
    return sse.as_line({**head, **fields}) + "\n"


def _end(message: Message, begun: int) -> dict[str, Any]:
    spent = perf_counter_ns() - begun
    taken = timings([message.answer])
    return {
        "done": True,
        "done_reason": "length" if message.answer.finish == "length" else "stop",
        "total_duration": spent,
        "load_duration": 0,
        "prompt_eval_count": message.answer.prompt_tokens,
        "prompt_eval_duration": int(1e6 * taken["prompt_ms"]),
        "eval_count": len(message.answer.ids),
        "eval_duration": int(1e6 * taken["predicted_ms"]),
    }


def _time() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _call(call: ToolCall) -> dict[str, Any]:
    return {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}


_KEYS: Mapping[str, str] = {"thinking": "reasoning_content", "tool_name": "name"}
"""Keys of a message that have another name in a chat."""


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    plain = {_KEYS.get(key, key): value for key, value in message.items() if key != "images"}
    if message.get("images"):
        plain["content"] = _with_images(message.get("content") or "", message["images"])
    return plain


def _with_images(text: str, images: Any) -> list[dict[str, Any]]:
    """Return the parts of a message: its images, which are files in base64, before its text."""
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise UsageError("`images` is a list of files in base64", found=type(images).__name__)
    parts = [image_part(f"data:image/any;base64,{image}") for image in images]
    return [*parts, {"type": "text", "text": text}]


def _response_format(stated: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(stated, Mapping):
        return {"type": "json_schema", "json_schema": {"schema": dict(stated)}}
    if stated != "json":
        raise UsageError("unknown `format`", expected="json or a JSON schema", found=stated)
    return {"type": "json_object"}


async def show(service: Service, _: ShowRequest) -> Response:
    """Answer `/api/show`."""
    from rdrr_runtime.text.answer_formats import recognise

    package = service.model.package
    manifest, source = package.manifest, ""
    with suppress(RdrrError):
        source = service.model.chat_template(service.template).source
    output = manifest.inference.output
    capabilities = {
        "completion": has_head(package),
        "tools": bool(source),
        "thinking": recognise(source).reasoning is not None,
        "vision": manifest.processor is not None,
        "insert": marks_of(service.model) is not None,
        "embedding": output.embedding_postprocessor is not None and output.classifier is None,
    }
    family = manifest.model_type
    return JSONResponse(
        {
            "modelfile": "",
            "parameters": "",
            "template": source,
            "details": _details(manifest),
            "model_info": {
                "general.architecture": family,
                "general.basename": service.name,
                f"{family}.context_length": service.model.info.context,
            },
            "capabilities": [name for name, has in capabilities.items() if has],
        }
    )


async def version(_: Request) -> Response:
    """Answer `/api/version`."""
    return JSONResponse({"version": VERSION})


def entry(offer: Offer, name: str) -> dict[str, Any]:
    """Return what `/api/tags` says of a name of a package."""
    manifest = offer.manifest
    return {
        "name": name,
        "model": name,
        "modified_at": _time(),
        "size": manifest.total_size,
        "digest": offer.digest,
        "details": _details(manifest),
    }


def sizes(service: Service) -> dict[str, int]:
    """Return what `/api/ps` says besides of a package that is loaded."""
    return {"size_vram": service.worker.memory, "context_length": service.model.info.context}


def _details(manifest: Manifest) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "rdrr",
        "family": manifest.model_type,
        "families": [manifest.model_type],
        "parameter_size": "",
        "quantization_level": manifest.quantization,
    }
