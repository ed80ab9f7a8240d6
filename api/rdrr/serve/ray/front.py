"""The application: a front that reads requests, and the replicas that answer them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rdrr.serve.guards import body_of, error_response, in_form_of, too_large
from rdrr.serve.packages import ServeOptions, key_in
from rdrr.serve.ray.replica import ReadRequest, Replica, Served

TRIES = 3
"""Replicas that a request is handed to, each of which dies before it answers."""


class Arguments(BaseModel):
    """The arguments of the application, in `serve run` or in the file of `serve deploy`.

    Attributes:
        model: The package, or several divided by commas.
        replicas: Processes that serve it, or fewest of them.
        most_replicas: Most of them, started and ended by Ray as the requests need; None for
            a fixed number.
        gpus: GPUs of a replica, which Ray reserves; a part of one for replicas that share it.
        load: Options of loading, by the names of `rdrr.LoadOptions`.
        api_key_file: File with the key that clients must send.

    The others are those of `ServeOptions`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    replicas: int = Field(1, ge=1)
    most_replicas: int | None = Field(None, ge=1)
    gpus: float = Field(0, ge=0)
    slots: int = Field(4, ge=1, le=32)
    queue: int = Field(64, ge=0)
    template: str | None = None
    timeout: float | None = Field(None, gt=0)
    allow_remote_images: bool = False
    load: dict[str, Any] = {}
    api_key_file: Path | None = None


def app(fields: Mapping[str, Any]) -> serve.Application:
    """Return the application of `serve run rdrr.serve.ray:app model=PATH`.

    Args:
        fields: What `Arguments` has, as words or values.

    Raises:
        ValidationError: A field is unknown or wrong.
        UsageError: The key cannot be read.
    """
    arguments = Arguments.model_validate(fields)
    shared = {field.name for field in dataclasses.fields(ServeOptions)}
    options = ServeOptions(**arguments.model_dump(include=shared))
    key = None if arguments.api_key_file is None else key_in(arguments.api_key_file)
    served = Served(
        packages=tuple(arguments.model.split(",")), load=arguments.load, options=options, key=key
    )
    router = {
        "request_router_class": "rdrr.serve.ray.router:BeginningsRouter",
        "request_router_kwargs": {"slots": arguments.slots},
    }
    replicas = serve.deployment(
        name="Replica",
        max_ongoing_requests=arguments.slots + arguments.queue,
        ray_actor_options={"num_gpus": arguments.gpus},
        request_router_config=RequestRouterConfig.model_validate(router),
        **_number(arguments),
    )(_Replica)
    front = serve.deployment(name="Front", max_ongoing_requests=1_000)(_Front)
    return front.bind(replicas.bind(served))


def _number(arguments: Arguments) -> dict[str, Any]:
    if arguments.most_replicas is None:
        return {"num_replicas": arguments.replicas}
    scaling = AutoscalingConfig(
        min_replicas=arguments.replicas,
        max_replicas=max(arguments.replicas, arguments.most_replicas),
        target_ongoing_requests=arguments.slots,
    )
    return {"autoscaling_config": scaling}


class _Replica(Replica):
    """A replica that Ray runs."""

    def __init__(self, served: Served) -> None:
        super().__init__(served, serve.get_replica_context().replica_id.unique_id)

    def check_health(self) -> None:
        """Ray starts a replica anew that fails this several times."""
        self.check()

    def __del__(self) -> None:
        self.close()


class _Front:
    """Reads requests and hands each to a replica.

    Args:
        replicas: The replicas.
    """

    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        self._replicas: DeploymentHandle[Any] = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        body = await body_of(request)
        if body is None:
            return in_form_of(request.url.path, too_large())
        scope = request.scope
        path = scope.get("raw_path", scope["path"].encode()).decode("ascii")
        read = ReadRequest(request.method, path, scope["query_string"], scope["headers"], body)
        for _ in range(TRIES):
            stream: Any = self._replicas.answer.remote(read)
            messages = aiter(stream)
            try:
                start = await anext(messages)
            except RayActorError:
                continue
            return _response(start, messages, request.url.path)
        return in_form_of(request.url.path, _died())


def _response(start: dict[str, Any], messages: AsyncIterator[Any], path: str) -> Response:
    response = StreamingResponse(_parts(messages, path), start["status"])
    response.raw_headers = [*start["headers"]]
    return response


async def _parts(messages: AsyncIterator[Any], path: str) -> AsyncIterator[bytes]:
    """Yield the parts of an answer; a stream whose replica dies ends with an error."""
    try:
        async for message in messages:
            yield message.get("body", b"")
    except RayActorError:
        error = bytes(in_form_of(path, _died()).body)
        yield error + b"\n" if path.startswith("/api/") else b"data: " + error + b"\n\n"


def _died() -> JSONResponse:
    return error_response(503, "the replica has died", "server_error")
