"""The application: its routes, and the responses to their errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from rdrr_format.errors import DeviceError, RdrrError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rdrr.serve import anthropic, ollama, openai, scoring
from rdrr.serve.chats import prompt_of
from rdrr.serve.guards import Guards, body_of, error_response, in_form_of, too_large
from rdrr.serve.package_files import package_routes
from rdrr.serve.page import page_routes
from rdrr.serve.requests import (
    ChatCompletionRequest,
    ChatRequest,
    CompletionRequest,
    ignored_fields,
)
from rdrr.serve.responses import Responses, ResponsesRequest
from rdrr.serve.texts import Service, Texts, is_too_long
from rdrr.serve.worker import TOO_LATE, BusyError

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

M = TypeVar("M", bound=BaseModel)

HEALTHY_SECONDS = 60.0
"""Seconds in which a healthy model generates a token."""

RETRY_SECONDS = "2"

IGNORED = "x-ignored-fields"
"""Header that names the fields of a request that the server does not know."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class DecodeRequest(BaseModel):
    """A request for `/detokenize`."""

    tokens: list[int]


class EncodeRequest(BaseModel):
    """A request for `/tokenize`."""

    content: str
    add_special: bool = False


class TooLargeError(Exception):
    """The body of a request is too large."""


def application(
    service: Service,
    *,
    key: str | None = None,
    hosts: frozenset[str] | None = None,
    origins: Sequence[str] = (),
    package: Package | None = None,
) -> Any:
    """Return the application.

    Args:
        service: The model that is served.
        key: What a client must know; None for no key.
        hosts: Names by which the server may be called; None for any.
        origins: Origins of pages that may read the answers.
        package: The package whose files the page may run; None for none.
    """
    routes, stored = _Routes(service), Responses()
    cors = Middleware(
        CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
    )
    guards = Middleware(Guards, key=key, hosts=hosts)
    return Starlette(
        routes=[
            *(
                Route(path, routes.text(kind, answer), methods=["POST"])
                for path, (kind, answer) in _TEXTS.items()
            ),
            Route("/v1/responses", routes.text(ResponsesRequest, stored.create), methods=["POST"]),
            Route("/v1/responses/compact", _not_served, methods=["POST"]),
            Route("/v1/responses/{name}", _named(stored.get)),
            Route("/v1/responses/{name}", _named(stored.delete), methods=["DELETE"]),
            Route("/v1/responses/{name}/input_items", _named(stored.input_items)),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/tokenize", routes.tokenize, methods=["POST"]),
            Route("/detokenize", routes.detokenize, methods=["POST"]),
            Route("/apply-template", routes.apply_template, methods=["POST"]),
            Route("/props", routes.props),
            Route("/api/tags", routes.facts(ollama.tags)),
            Route("/api/version", routes.facts(ollama.version)),
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
            *page_routes(),
            *package_routes(package),
        ],
        middleware=[cors, guards] if origins else [guards],
        exception_handlers={kind: _handled(answer) for kind, answer in _FAULTS.items()},
    )


Answerer = Callable[[Service, Any], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]
_TEXTS: Mapping[str, tuple[type[BaseModel], Answerer]] = {
    "/v1/chat/completions": (ChatCompletionRequest, openai.chat),
    "/v1/completions": (CompletionRequest, openai.complete),
    "/v1/messages": (anthropic.MessagesRequest, anthropic.messages),
    "/v1/messages/count_tokens": (anthropic.CountRequest, anthropic.count_tokens),
    "/v1/embeddings": (scoring.EmbeddingRequest, scoring.embeddings),
    "/v1/rerank": (scoring.RerankRequest, scoring.rerank),
    "/v1/classify": (scoring.ClassifyRequest, scoring.classify),
    "/api/chat": (ollama.OllamaChatRequest, ollama.chat),
    "/api/generate": (ollama.OllamaGenerateRequest, ollama.generate),
    "/api/show": (ollama.ShowRequest, ollama.show),
}
"""The routes that read a request for a model, with what they read."""


async def _not_served(_: Request) -> Response:
    raise HTTPException(404)


def _named(
    answer: Callable[[str], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        return await answer(request.path_params["name"])

    return route


class _Routes:
    """The routes of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def text(self, kind: type[BaseModel], answer: Answerer) -> Endpoint:
        """Return a route that reads a request for the model and answers it."""

        async def route(request: Request) -> Response:
            asked: Any = await _read(request, kind)
            openai.check_name(self._service, asked.model)
            ignored = ignored_fields(asked)
            response = await _while_connected(request, answer(self._service, asked))
            if names := [name for name in ignored if _NAME.fullmatch(name)]:
                response.headers[IGNORED] = ", ".join(names)
            counter = self._service.metrics.requests
            counter.labels(request.url.path, str(response.status_code)).inc()
            return response

        return route

    def facts(self, answer: Callable[[Service], Awaitable[Response]]) -> Endpoint:
        """Return a route that reads nothing."""

        async def route(_: Request) -> Response:
            return await answer(self._service)

        return route

    async def models(self, _: Request) -> Response:
        names = (self._service.name, *self._service.aliases)
        return JSONResponse({"object": "list", "data": [self._entry(name) for name in names]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in (self._service.name, *self._service.aliases):
            return error_response(
                404, openai.UNKNOWN_MODEL, "invalid_request_error", "model_not_found"
            )
        return JSONResponse(self._entry(name))

    def _entry(self, name: str) -> dict[str, Any]:
        started = self._service.started
        return {"id": name, "object": "model", "created": started, "owned_by": "rdrr"}

    async def tokenize(self, request: Request) -> Response:
        asked = await _read(request, EncodeRequest)
        model = self._service.model
        encode = model.encode if asked.add_special else model.encode_as_is
        return JSONResponse({"tokens": encode(asked.content)})

    async def detokenize(self, request: Request) -> Response:
        asked = await _read(request, DecodeRequest)
        if asked.tokens:
            vocab_size = self._service.model.package.manifest.architecture.vocab_size
            wrong = [token for token in asked.tokens if not 0 <= token < vocab_size]
            if wrong:
                message = f"token id {wrong[0]} is outside the vocabulary of {vocab_size}"
                return error_response(400, message, "invalid_request_error")
        return JSONResponse({"content": self._service.model.decode(asked.tokens)})

    async def apply_template(self, request: Request) -> Response:
        asked = await _read(request, ChatRequest)
        ids = (await prompt_of(self._service, asked)).rendered.ids
        return JSONResponse({"prompt": self._service.model.decode(ids), "tokens": ids})

    async def props(self, _: Request) -> Response:
        service = self._service
        info = service.model.info
        return JSONResponse(
            {
                "model": service.name,
                "backend": info.name,
                "adapter": info.adapter,
                "context": info.context,
                "slots": service.worker.slots,
                "jobs": service.worker.jobs,
                "restarts": service.worker.restarts,
            }
        )

    async def health(self, request: Request) -> Response:
        service = self._service
        if not service.worker.is_alive:
            return error_response(
                503, f"the model has failed: {service.worker.failure}", "server_error"
            )
        if request.query_params.get("generate"):
            asked = CompletionRequest(prompt="a", temperature=0.0)
            texts = Texts(service, asked, [service.model.encode("a")], 1)
            try:
                async with asyncio.timeout(HEALTHY_SECONDS):
                    await texts.read()
            except (TimeoutError, RdrrError) as error:
                return error_response(503, f"no token came: {error}", "server_error")
            finally:
                texts.close()
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        text = self._service.metrics.text(self._service.worker)
        return Response(text, media_type="text/plain; version=0.0.4")


async def _read(request: Request, kind: type[M]) -> M:
    """Return the body of a request.

    Raises:
        ValidationError: It is not what the route reads.
        TooLargeError: It is too large.
    """
    body = await body_of(request)
    if body is None:
        raise TooLargeError
    return kind.model_validate_json(body)


async def _while_connected(request: Request, answer: Awaitable[Response]) -> Response:
    """Return an answer; if the client goes before it is there, its texts end."""
    task = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            return Response(status_code=499)
        return task.result()
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _http_error(error: HTTPException) -> JSONResponse:
    return error_response(error.status_code, str(error.detail), "invalid_request_error")


def _refusal(error: RdrrError) -> JSONResponse:
    if isinstance(error, DeviceError):
        return error_response(503, str(error), "server_error", retry_after=RETRY_SECONDS)
    if error.message == openai.UNKNOWN_MODEL:
        return error_response(404, str(error), "invalid_request_error", "model_not_found")
    if error.message == TOO_LATE:
        headers = {"x_should_retry": "false"}
        return error_response(408, str(error), "timeout_error", "deadline_exceeded", **headers)
    code = "context_length_exceeded" if is_too_long(error) else None
    return error_response(400, str(error), "invalid_request_error", code)


def _invalid(error: ValidationError) -> JSONResponse:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, problem["loc"]))
    message = f"{where}: {problem['msg']}" if where else problem["msg"]
    return error_response(400, message, "invalid_request_error")


def _busy(_: BusyError) -> JSONResponse:
    message = "too many requests wait for the model"
    return error_response(429, message, "rate_limit_error", retry_after=RETRY_SECONDS)


_FAULTS: Mapping[type[Exception], Callable[[Any], JSONResponse]] = {
    HTTPException: _http_error,
    RdrrError: _refusal,
    ValidationError: _invalid,
    BusyError: _busy,
    TooLargeError: lambda _: too_large(),
    Exception: lambda _: error_response(500, "the server has failed", "server_error"),
}
"""The answers to errors, which get the form of the interface that was called."""


def _handled(
    answer: Callable[[Any], JSONResponse],
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        return in_form_of(request.url.path, answer(error))

    return handler
