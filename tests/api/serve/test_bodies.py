"""Bodies as strangers' clients send them: nulls, wrong types and wrong methods."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection

import pytest
from support.serving import scripted

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "small-llama", "messages": MESSAGES, "max_tokens": 4}
OLLAMA = {"model": "small-llama", "stream": False}
NULLS = ("stream", "n", "stop", "tools", "metadata", "stop_sequences", "context_shift", "options")


@pytest.fixture(scope="module")
def address(worker):
    with scripted(worker.model, lambda _: "Hello there.") as (url, _):
        yield url.removeprefix("http://")


def sent(address: str, method: str, path: str, body: object = None) -> tuple[int, dict, str | None]:
    """Return the status of an answer, its body, and the methods that it allows."""
    with closing(HTTPConnection(address, timeout=300)) as connection:
        connection.request(method, path, json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.getheader("allow")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"model": "small-llama", "prompt": "Hello"}),
        ("/v1/responses", {"model": "small-llama", "input": "Hello"}),
        ("/v1/messages", CHAT),
        ("/api/chat", {**OLLAMA, "messages": MESSAGES}),
        ("/api/generate", {**OLLAMA, "prompt": "Hello"}),
    ],
)
def test_null_means_that_a_field_is_not_stated(address, path, body):
    nulls = {name: None for name in NULLS if name not in body}
    plain, with_nulls = (sent(address, "POST", path, asked) for asked in (body, body | nulls))
    assert (plain[0], with_nulls[0]) == (200, 200), with_nulls[1]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"role": 5, "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"text": "x"}},
        {"role": "assistant", "tool_calls": "x"},
        {"role": "assistant", "tool_calls": [5]},
    ],
    ids=["no role", "role", "number", "object", "calls", "call"],
)
def test_a_message_of_a_wrong_shape_is_refused_with_its_place(address, path, message):
    status, answer, _ = sent(address, "POST", path, {**CHAT, "messages": [*MESSAGES, message]})
    assert status == 400
    assert "messages.1" in json.dumps(answer)
    assert sent(address, "POST", path, {**CHAT, "stream": False})[0] == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", "hot"), ("stop", 5), ("n", 0), ("max_tokens", -1)),
        *(("temperature", -1), ("top_p", 2), ("best_of", 4), ("logit_bias", {"9999999": 1})),
    ],
)
def test_an_error_names_its_field(address, field, value):
    status, answer, _ = sent(address, "POST", "/v1/chat/completions", CHAT | {field: value})
    assert (status, answer["error"]["param"]) == (400, field)
    assert answer["error"]["message"].lstrip("`").startswith(field)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ["x"] * 17}, "stop: List should have at most 16 items"),
        ({"stop": 5}, "stop: Input should be a valid string or Input should be a valid array"),
        ({"stop": ["x", 5]}, "stop.1: Input should be a valid string"),
        ({"prompt": ["x", 5]}, "prompt.1: Input should be a valid string"),
    ],
)
def test_a_field_of_several_types_is_told_what_is_wrong_with_the_type_that_it_has(
    address, fields, message
):
    status, answer, _ = sent(address, "POST", "/v1/completions", {"prompt": "Hello"} | fields)
    assert (status, answer["error"]["message"][: len(message)]) == (400, message)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_a_wrong_method_is_told_the_right_one(address, path):
    status, answer, allow = sent(address, "GET", path)
    assert (status, "error" in answer, allow) == (405, True, "POST")


def test_a_model_that_works_is_not_unloaded_and_the_answer_says_so(worker):
    with scripted(worker.model, lambda _: "Hello") as (url, script):
        address, script.jobs, script.stop = url.removeprefix("http://"), 1, lambda _: None
        status, answer, _ = sent(address, "POST", "/v1/models/unload", {})
        assert (status, "stays loaded" in answer["error"]["message"]) == (429, True)
        script.jobs = 0
        assert sent(address, "POST", "/v1/models/unload", {})[0] == 200
