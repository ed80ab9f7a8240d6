"""The application: its routes, and what most of them answer."""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from rdrr_format.errors import RdrrError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rdrr._generation import AnswerText
from rdrr.serve import anthropic, infill, ollama, openai, scoring
from rdrr.serve.chats import prompt_of
from rdrr.serve.guards import Guards, body_of, error_response
from rdrr.serve.package_files import package_routes
from rdrr.serve.page import page_routes
from rdrr.serve.pool import Offer, Pool, pool_of
from rdrr.serve.refusals import TooLargeError, exception_handlers
from rdrr.serve.requests import (
    Body,
    ChatCompletionRequest,
    ChatRequest,
    CompletionRequest,
)
from rdrr.serve.response_requests import ResponsesRequest
from rdrr.serve.responses import Responses
from rdrr.serve.texts import Service, Texts
from rdrr.serve.worker import BusyError

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

M = TypeVar("M", bound=BaseModel)

HEALTHY_SECONDS = 60.0
"""Seconds in which a healthy model generates a token."""

IGNORED = "x-ignored-fields"
"""Header that names the fields of a request that the server does not know."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class NameRequest(Body):
    """A request that means a model."""

    model: str | None = None


class DecodeRequest(NameRequest):
    """A request for `/detokenize`."""

    tokens: list[int]


class EncodeRequest(NameRequest):
    """A request for `/tokenize`."""

    content: str
    add_special: bool = False


def application(
    served: Pool | Service,
    *,
    key: str | None = None,
    hosts: frozenset[str] | None = None,
    origins: Sequence[str] = (),
    package: Package | None = None,
    replica: str = "",
) -> Any:
    """Return the application.

    Args:
        served: The packages that are served, or the only one.
        key: What a client must know; None for no key.
        hosts: Names by which the server may be called; None for any.
        origins: Origins of pages that may send requests and read answers.
        package: The package whose files the page may run; None for none.
        replica: Name of this server among several that answer the same requests.
    """
    routes = _Routes(served if isinstance(served, Pool) else pool_of(served))
    stored = Responses(replica)
    texts = _TEXTS | {
        "/v1/responses": (ResponsesRequest, stored.create),
        "/v1/responses/input_tokens": (ResponsesRequest, stored.input_tokens),
    }
    cors = Middleware(
        CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
    )
    guards = Middleware(Guards, key=key, hosts=hosts, origins=origins)
    return Starlette(
        routes=[
            *(Route(path, routes.text(*reads), methods=["POST"]) for path, reads in texts.items()),
            Route("/v1/responses/compact", _not_served, methods=["POST"]),
            Route("/v1/responses/{name}", _named(stored.get)),
            Route("/v1/responses/{name}", _named(stored.delete), methods=["DELETE"]),
            Route("/v1/responses/{name}/input_items", _named(stored.input_items)),
            Route("/v1/responses/{name}/cancel", _named(stored.cancel), methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/", routes.models),
            Route("/v1/models/load", routes.load, methods=["POST"]),
            Route("/v1/models/unload", routes.unload, methods=["POST"]),
            Route("/v1/models/{name:path}", routes.model),
            Route("/props", routes.props),
            Route("/slots", routes.slots),
            Route("/api/tags", routes.tags),
            Route("/api/ps", routes.running),
            Route("/api/pull", routes.pull, methods=["POST"]),
            Route("/api/version", ollama.version),
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
            *page_routes(),
            *package_routes(package),
        ],
        middleware=[cors, guards] if origins else [guards],
        exception_handlers=exception_handlers(),
    )


Answerer = Callable[[Service, Any], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


async def _not_served(_: Request) -> Response:
    raise HTTPException(404)


def _named(answer: Callable[[str], Awaitable[Response]]) -> Endpoint:
    async def route(request: Request) -> Response:
        return await answer(request.path_params["name"])

    return route


class _Routes:
    """The routes of a server."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def text(self, kind: type[BaseModel], answer: Answerer) -> Endpoint:
        """Return a route that reads a request for the model and answers it."""

        async def route(request: Request) -> Response:
            asked: Any = await _read(request, kind)
            ignored = asked.ignored
            async with self._pool.lend(asked.model) as service:
                response = await _while_connected(request, answer(service, asked))
                counter = service.metrics.requests
                counter.labels(request.url.path, str(response.status_code)).inc()
            if asked.unloads:
                offer = self._pool.offer(asked.model)
                response.background = BackgroundTask(self._pool.unload, offer)
            if names := [name for name in ignored if _NAME.fullmatch(name)]:
                response.headers[IGNORED] = ", ".join(names)
            return response

        return route

    async def models(self, _: Request) -> Response:
        data = [self._entry(offer, name) for offer, name in self._names()]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(self._entry(self._pool.offer(name), name))

    async def load(self, request: Request) -> Response:
        asked = await _read(request, NameRequest)
        offer = self._pool.offer(asked.model)
        async with self._pool.lend(offer.name):
            return JSONResponse(self._entry(offer, offer.name))

    async def unload(self, request: Request) -> Response:
        asked = await _read(request, NameRequest)
        offer = self._pool.offer(asked.model)
        if not await run_in_threadpool(self._pool.unload, offer):
            raise BusyError("the model works for other requests, so it stays loaded")
        return JSONResponse(self._entry(offer, offer.name))

    def _names(self) -> list[tuple[Offer, str]]:
        offers = self._pool.offers
        return [(offer, name) for offer in offers for name in (offer.name, *offer.aliases)]

    def _entry(self, offer: Offer, name: str) -> dict[str, Any]:
        """Return what the list of models says of one, with the fields of OpenAI and Anthropic."""
        return {
            "id": name,
            "object": "model",
            "created": self._pool.started,
            "owned_by": "rdrr",
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(self._pool.started, UTC).isoformat(),
            "status": "unloaded" if offer.service is None else "loaded",
        }

    async def tags(self, _: Request) -> Response:
        return JSONResponse({"models": [ollama.entry(*named) for named in self._names()]})

    async def pull(self, request: Request) -> Response:
        """Answer `/api/pull`, by which clients make sure of a model: it is here, or unknown."""
        asked = await _read(request, ollama.ShowRequest)
        self._pool.offer(asked.model)
        return Response('{"status": "success"}\n', media_type="application/x-ndjson")

    async def running(self, _: Request) -> Response:
        models = [
            {**ollama.entry(offer, name), **ollama.sizes(offer.service)}
            for offer, name in self._names()
            if offer.service is not None
        ]
        return JSONResponse({"models": models})

    async def props(self, _: Request) -> Response:
        facts = [_facts(service) for service in self._pool.loaded]
        return JSONResponse({**(facts[0] if facts else {}), "models": facts})

    async def slots(self, _: Request) -> Response:
        slots = [
            {"id": number, "model": service.name, "n_ctx": service.model.info.context,
             "is_processing": number < service.worker.jobs}
            for service in self._pool.loaded
            for number in range(service.worker.slots)
        ]  # fmt: skip
        return JSONResponse(slots)

    async def health(self, request: Request) -> Response:
        for service in self._pool.loaded:
            if not service.worker.is_alive:
                return error_response(
                    503, f"the model has failed: {service.worker.failure}", "server_error"
                )
        if request.query_params.get("generate"):
            async with self._pool.lend() as service:
                return await _generates(service)
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        workers = [service.worker for service in self._pool.loaded]
        return Response(self._pool.metrics.text(workers), media_type="text/plain; version=0.0.4")


def _facts(service: Service) -> dict[str, Any]:
    info, worker = service.model.info, service.worker
    return {
        "model": service.name,
        "backend": info.name,
        "adapter": info.adapter,
        "context": info.context,
        "modalities": {"vision": service.model.package.vision_graph is not None},
        "slots": worker.slots,
        "jobs": worker.jobs,
        "restarts": worker.restarts,
    }


async def _generates(service: Service) -> Response:
    """Return whether a token comes."""
    asked = CompletionRequest.model_validate({"prompt": "a", "temperature": 0.0})
    texts = Texts(service, asked, [service.model.encode("a")], 1)
    try:
        async with asyncio.timeout(HEALTHY_SECONDS):
            await texts.read()
    except (TimeoutError, RdrrError) as error:
        return error_response(503, f"no token came: {error}", "server_error")
    finally:
        texts.close()
    return JSONResponse({"status": "ok"})


async def _tokenize(service: Service, asked: EncodeRequest) -> Response:
    model = service.model
    encode = model.encode if asked.add_special else model.encode_as_is
    return JSONResponse({"tokens": encode(asked.content)})


async def _detokenize(service: Service, asked: DecodeRequest) -> Response:
    vocab_size = service.model.package.manifest.architecture.vocab_size
    wrong = [token for token in asked.tokens if not 0 <= token < vocab_size]
    if wrong:
        message = f"token id {wrong[0]} is outside the vocabulary of {vocab_size}"
        return error_response(400, message, "invalid_request_error")
    return JSONResponse({"content": service.model.decode(asked.tokens)})


async def _apply_template(service: Service, asked: ChatRequest) -> Response:
    ids = (await prompt_of(service, asked)).rendered.ids
    text = AnswerText(service.model._codec, (), (), shows=lambda _: True)
    prompt = "".join(map(text.add, ids)) + text.rest()
    return JSONResponse({"prompt": prompt, "tokens": ids})


_TEXTS: dict[str, tuple[type[BaseModel], Answerer]] = {
    "/v1/chat/completions": (ChatCompletionRequest, openai.chat),
    "/v1/completions": (CompletionRequest, openai.complete),
    "/v1/messages": (anthropic.MessagesRequest, anthropic.messages),
    "/v1/messages/count_tokens": (anthropic.CountRequest, anthropic.count_tokens),
    "/infill": (infill.InfillRequest, infill.infill),
    "/v1/embeddings": (scoring.EmbeddingRequest, scoring.embeddings),
    "/v1/rerank": (scoring.RerankRequest, scoring.rerank),
    "/v1/classify": (scoring.ClassifyRequest, scoring.classify),
    "/api/chat": (ollama.OllamaChatRequest, ollama.chat),
    "/api/generate": (ollama.OllamaGenerateRequest, ollama.generate),
    "/api/embed": (scoring.EmbeddingRequest, ollama.embed),
    "/api/embeddings": (ollama.OldEmbeddingRequest, ollama.embed_prompt),
    "/api/show": (ollama.ShowRequest, ollama.show),
    "/tokenize": (EncodeRequest, _tokenize),
    "/detokenize": (DecodeRequest, _detokenize),
    "/apply-template": (ChatRequest, _apply_template),
}
"""The routes that read a request for a model, with what they read."""


async def _read(request: Request, kind: type[M]) -> M:
    """Return the body of a request.

    Raises:
        ValidationError: It is not what the route reads.
        TooLargeError: It is too large.
    """
    body = await body_of(request)
    if body is None:
        raise TooLargeError
    return kind.model_validate_json(body.removeprefix(BOM_UTF8))


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
