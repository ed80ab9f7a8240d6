"""A server on a local Ray cluster: two replicas, the choice between them, and one that dies."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import rdrr
from rdrr.serve.responses import replica_of
from support.serving import Running

serve = pytest.importorskip("ray.serve", reason="the extra serve-ray is not installed")

pytestmark = pytest.mark.thorough
SHARED = "And it came to pass in those days, that there went out a decree. " * 6


@pytest.fixture(scope="module")
def address(made_package) -> Iterator[str]:
    ray = pytest.importorskip("ray")
    from rdrr.serve.ray import app

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Workers of Ray start from the environment alone, where pytest's paths are not.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        load = {"backend": "cpu", "context": 512}
        serve.run(app({"model": str(made_package), "replicas": "2", "slots": "2", "load": load}))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def client(address) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def response(client: openai.OpenAI, text: str, **fields) -> openai.types.responses.Response:
    return client.responses.create(
        model="small-llama", input=text, max_output_tokens=2, temperature=0, **fields
    )


def test_answers_are_those_of_the_model_whole_and_streamed(client, made_package):
    with rdrr.load(made_package, backend="cpu", context=512) as model:
        expected = model.generate("And it came", max_tokens=12, temperature=0).read()
    fields = {"model": "small-llama", "prompt": "And it came", "max_tokens": 12, "temperature": 0}
    assert client.completions.create(**fields).choices[0].text == expected
    chunks = [*client.completions.create(**fields, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected
    assert len(chunks) > 2


def test_requests_with_one_beginning_go_to_one_replica_and_others_to_both(client):
    with_beginning = {replica_of(response(client, SHARED + str(n)).id) for n in range(6)}
    assert len(with_beginning) == 1
    with ThreadPoolExecutor(8) as threads:
        others = threads.map(lambda n: response(client, f"{n} and other words").id, range(16))
    assert len({replica_of(name) for name in others}) == 2


def test_a_stored_response_is_continued_and_read_where_it_is_kept(client):
    for n in range(4):
        first = response(client, f"{n}: hello")
        assert client.responses.retrieve(first.id).id == first.id
        second = response(client, "go on", previous_response_id=first.id)
        assert replica_of(second.id) == replica_of(first.id)
        references = [{"type": "item_reference", "id": item.id} for item in first.output]
        third = response(client, [*references, {"role": "user", "content": "go on"}])
        assert replica_of(third.id) == replica_of(first.id)


def test_errors_have_the_form_of_the_interface(address):
    server = Running(int(address.rpartition(":")[2]), None)

    def ask(*request, **headers) -> tuple[int, dict]:
        status, body = server.ask(*request, **headers)
        return status, json.loads(body)

    assert ask("GET", "/v1/nothing")[1]["error"]["type"] == "invalid_request_error"
    status, large = ask("POST", "/v1/completions", b" " * (5 << 20))
    assert (status, "larger" in large["error"]["message"]) == (413, True)
    status, wrong = ask("POST", "/v1/messages", b'{"model": 3}')
    assert (status, wrong["type"]) == (400, "error")
    assert ask("GET", "/health?generate=1") == (200, {"status": "ok"})


def kill(name: str) -> None:
    """Kill a replica."""
    import ray

    (actor,) = [
        actor for actor in ray.util.list_named_actors(all_namespaces=True) if name in actor["name"]
    ]
    ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))


def replicas() -> int:
    """Return how many replicas run."""
    states = serve.status().applications["default"].deployments["Replica"].replica_states
    return states.get("RUNNING", 0)


def wait_for_both() -> None:
    deadline = time.monotonic() + 240
    while replicas() < 2:
        assert time.monotonic() < deadline
        time.sleep(1)


def test_a_replica_that_dies_under_load_fails_no_request_without_a_part_of_its_answer(client):
    fields = {"model": "small-llama", "max_tokens": 24, "temperature": 0}
    expected = client.completions.create(prompt="In the beginning", **fields).choices[0].text
    victim = replica_of(response(client, "In the beginning").id)
    dead = threading.Event()

    def ask(number: int) -> str:
        if number > 16:
            dead.wait()
        return client.completions.create(prompt="In the beginning", **fields).choices[0].text

    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(ask, range(48))
        kill(victim)
        dead.set()
        assert {*answers} == {expected}
    wait_for_both()
    assert (
        client.completions.create(prompt="In the beginning", **fields).choices[0].text == expected
    )


def test_a_stream_whose_replica_dies_ends_with_an_error(client):
    fields = {"model": "small-llama", "input": "Once", "max_output_tokens": 480}
    with client.responses.create(**fields, stream=True) as events:
        first = next(events)
        kill(replica_of(first.response.id))
        rest: list[str] = []
        with pytest.raises(openai.APIError, match="the replica has died"):
            rest.extend(event.type for event in events)
        assert "response.completed" not in rest
    wait_for_both()
