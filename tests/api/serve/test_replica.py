"""A server without sockets, as a cluster runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from rdrr.serve.packages import ServeOptions
from rdrr.serve.ray.replica import ReadRequest, Replica, Served
from rdrr.serve.responses import replica_of


@pytest.fixture(scope="module")
def replica(shallow_package) -> Iterator[Replica]:
    load = {"backend": "cpu", "context": 320}
    served = Served(
        packages=(str(shallow_package),), load=load, options=ServeOptions(), key="secret"
    )
    opened = Replica(served, "r1")
    yield opened
    opened.close()


def post(path: str, key: str = "secret", **fields: object) -> ReadRequest:
    headers = [(b"authorization", f"Bearer {key}".encode())]
    return ReadRequest("POST", path, b"", headers, json.dumps(fields).encode())


def answered(replica: Replica, request: ReadRequest) -> tuple[int, dict]:
    async def read() -> tuple[int, dict]:
        start, *parts = [message async for message in replica.answer(request)]
        return start["status"], json.loads(b"".join(part["body"] for part in parts))

    return asyncio.run(read())


def test_a_request_is_answered_and_its_response_is_kept_under_the_name_of_the_replica(replica):
    status, first = answered(
        replica, post("/v1/responses", model="small-llama", input="Once", max_output_tokens=2)
    )
    assert (status, replica_of(first["id"])) == (200, "r1")
    assert [replica_of(item["id"]) for item in first["output"]] == ["r1"]
    request = ReadRequest("GET", f"/v1/responses/{first['id']}", b"", post("").headers, b"")
    assert answered(replica, request) == (200, first)


def test_a_request_without_the_key_is_refused(replica):
    status, error = answered(replica, post("/v1/completions", key="guessed", prompt="Once"))
    assert (status, error["error"]["code"]) == (401, "invalid_api_key")


def test_a_text_for_which_nobody_waits_ends(replica):
    (service,) = replica._pool.loaded

    async def leave() -> object:
        answer = replica.answer(post("/v1/completions", prompt="Once", max_tokens=280, stream=True))
        await anext(answer)
        await anext(answer)
        (job,) = service.worker._jobs
        await answer.aclose()
        return job

    assert asyncio.run(leave()).cancelled


def test_a_replica_whose_model_has_failed_is_not_healthy(replica, monkeypatch):
    replica.check()
    monkeypatch.setattr(replica._pool.loaded[0].worker, "failure", RuntimeError("lost"))
    with pytest.raises(Exception, match="the model has failed"):
        replica.check()
