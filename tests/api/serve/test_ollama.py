"""Ollama's routes: lines of JSON, and its names of options."""

from __future__ import annotations

import json
from http.client import HTTPConnection

import pytest
from rdrr import LoadOptions
from rdrr.serve.app import application
from rdrr.serve.packages import ServeOptions, pool_of_packages
from starlette.testclient import TestClient
from support.serving import Running, scripted

MESSAGES = [{"role": "user", "content": "Hello"}]
OPTIONS = {"temperature": 0, "num_predict": 6}
CALL = '<think>Hm.</think><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "f"}}


def post(server, path: str, body: dict) -> tuple[int, list[dict]]:
    status, answer = server.ask("POST", path, json.dumps(body).encode())
    return status, [json.loads(line) for line in answer.decode().splitlines()]


@pytest.mark.parametrize(
    ("path", "asked", "text"),
    [
        ("/api/chat", {"messages": MESSAGES}, lambda line: line["message"]["content"]),
        ("/api/generate", {"prompt": "Hello"}, lambda line: line["response"]),
        ("/api/generate", {"prompt": "Hello", "raw": True}, lambda line: line["response"]),
    ],
    ids=["chat", "generate", "raw"],
)
def test_an_answer_comes_in_lines_or_whole(server, path, asked, text):
    asked = {"model": "small-llama:latest", "options": OPTIONS, **asked}
    status, lines = post(server, path, asked)
    _, (whole,) = post(server, path, asked | {"stream": False})
    assert status == 200
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "".join(text(line) for line in lines) == text(whole)
    assert text(whole)
    assert (whole["done_reason"], whole["eval_count"]) == ("length", 6)
    assert whole["prompt_eval_count"] == lines[-1]["prompt_eval_count"] > 0
    for end in (whole, lines[-1]):
        parts = end["prompt_eval_duration"], end["eval_duration"]
        assert min(parts) > 0
        assert sum(parts) <= end["total_duration"]


def test_thoughts_and_calls_are_apart(worker, tools_template):
    with scripted(worker.model, CALL, CALL, template=tools_template) as (url, script):
        server = Running(int(url.rpartition(":")[2]), script)
        asked = {"model": "small-llama", "messages": MESSAGES, "tools": [TOOL]}
        _, lines = post(server, "/api/chat", asked)
        _, (whole,) = post(server, "/api/chat", asked | {"stream": False})
    said = whole["message"]
    assert said["thinking"] == "Hm."
    assert said["tool_calls"] == [{"function": {"name": "f", "arguments": {"a": 1}}}]
    parts = [line["message"] for line in lines]
    assert "".join(part.get("thinking", "") for part in parts) == "Hm."
    assert [call for part in parts for call in part.get("tool_calls", [])] == said["tool_calls"]


def test_thoughts_and_names_of_tools_in_the_history_are_in_the_prompt(worker, tmp_path):
    template = tmp_path / "all.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.role }}/{{ m.name }}/{{ m.reasoning_content }};{% endfor %}"
        "{{ tools }}",
        encoding="utf-8",
    )
    call = {"function": {"name": "f", "arguments": {}}}
    history = [
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_name": "f"},
    ]
    with scripted(worker.model, "ok", template=template) as (url, script):
        server = Running(int(url.rpartition(":")[2]), script)
        asked = {"messages": [*MESSAGES, *history], "stream": False}
        assert post(server, "/api/chat", asked)[0] == 200
    assert script.prompt.startswith("user//;assistant//Hm.;tool/f/;")


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        ("/api/generate", {"keep_alive": -1}, {"response": ""}),
    ],
    ids=["chat", "generate"],
)
def test_a_request_without_a_prompt_loads_the_model(server, path, asked, said):
    status, (line,) = post(server, path, {"model": "small-llama", **asked})
    assert (status, line["done"], line["done_reason"]) == (200, True, "load")
    assert said.items() <= line.items()


def test_models_are_told_of(server):
    tags = json.loads(server.ask("GET", "/api/tags")[1])
    assert [model["name"] for model in tags["models"]] == ["small-llama", "alias"]
    loaded = json.loads(server.ask("GET", "/api/ps")[1])["models"]
    assert [(model["name"], model["size_vram"] > 0) for model in loaded] == [
        ("small-llama", True),
        ("alias", True),
    ]
    assert {model["context_length"] for model in loaded} == {server.worker.model.info.context}
    _, (shown,) = post(server, "/api/show", {"model": "small-llama"})
    assert shown["capabilities"] == ["completion", "tools"]
    assert post(server, "/api/show", {"name": "other"})[0] == 404
    assert post(server, "/api/pull", {"model": "alias:latest"}) == (200, [{"status": "success"}])
    assert post(server, "/api/pull", {"model": "other"})[0] == 404
    assert "messages" in shown["template"] or "for m in" in shown["template"]
    assert all(len(model["digest"]) == 64 and model["size"] for model in tags["models"])


def test_the_version_is_one_that_editors_take(server):
    """Copilot takes 0.6.4 and newer; ours says nothing to it."""
    version = json.loads(server.ask("GET", "/api/version")[1])["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


def test_what_is_ignored_is_named(server):
    options = {**OPTIONS, "num_ctx": 4096, "mirostat": 2}
    asked = {"prompt": "Hello", "options": options, "stream": False, "shift": True}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request("POST", "/api/generate", json.dumps(asked))
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.headers["x-ignored-fields"] == "shift, options.num_ctx, options.mirostat"


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_part_of_a_stream_is_one_line_for_every_client(worker, path):
    said = "a\u2028b\x85c\u2029d"
    with scripted(worker.model, said) as (url, script):
        server = Running(int(url.rpartition(":")[2]), script)
        asked = {"model": "small-llama", "messages": MESSAGES, "stream": True}
        _, answer = server.ask("POST", path, json.dumps(asked).encode())
    lines = [line.removeprefix("data: ") for line in answer.decode().splitlines() if line]
    parts = [json.loads(line) for line in lines if line != "[DONE]"]
    deltas = [part.get("message") or part["choices"][0]["delta"] for part in parts]
    assert "".join(delta.get("content", "") for delta in deltas) == said


@pytest.fixture
def packages(shallow_package):
    """A server of a package that is not loaded yet."""
    pool = pool_of_packages([str(shallow_package)], LoadOptions(backend="cpu"), ServeOptions())
    yield pool
    pool.close()


def test_a_model_is_unloaded_after_an_answer_where_the_client_says_so(packages):
    name = packages.offers[0].name
    with TestClient(application(packages)) as client:

        def loaded() -> list[str]:
            return [model["name"] for model in client.get("/api/ps").json()["models"]]

        unloaded = client.get("/api/tags").json()["models"]
        asked = {"model": name, "prompt": "Hello", "options": OPTIONS}
        assert client.post("/api/generate", json=asked | {"keep_alive": "5m"}).status_code == 200
        assert loaded() == [name]
        facts = client.get("/api/tags").json()["models"]
        assert [(each["size"], each["details"]) for each in unloaded] == [
            (each["size"], each["details"]) for each in facts
        ]
        client.post("/api/generate", json=asked | {"keep_alive": "0s"})
        assert not loaded()
        client.post("/api/generate", json={"model": name})
        assert loaded() == [name]
        said = client.post("/api/chat", json={"model": name, "keep_alive": 0}).json()
        assert (said["done"], said["done_reason"]) == (True, "unload")
        assert not loaded()


def test_errors_are_a_text(server):
    status, (answer,) = post(server, "/api/chat", {"model": "other", "messages": MESSAGES})
    assert (status, "not served" in answer["error"]) == (404, True)
    status, (answer,) = post(server, "/api/chat", {"messages": MESSAGES, "format": "xml"})
    assert (status, "format" in answer["error"]) == (400, True)
    for options in ({"num_predict": "few"}, {"temperature": "hot"}):
        asked = {"messages": MESSAGES, "options": options}
        status, (answer,) = post(server, "/api/chat", asked)
        assert (status, next(iter(options)) in answer["error"]) == (400, True)
    picture = [{"role": "user", "content": "?", "images": ["aGk="]}]
    status, (answer,) = post(server, "/api/chat", {"messages": picture})
    assert (status, "does not see images" in answer["error"]) == (400, True)
    asked = {"prompt": "?", "images": ["aGk="]}
    status, (answer,) = post(server, "/api/generate", asked)
    assert (status, "does not see images" in answer["error"]) == (400, True)
    status, (answer,) = post(server, "/api/generate", {**asked, "raw": True})
    assert (status, "chat template" in answer["error"]) == (400, True)
    status, (answer,) = post(server, "/api/chat", {"messages": [{**picture[0], "images": [1]}]})
    assert (status, "base64" in answer["error"]) == (400, True)


@pytest.mark.parametrize("path", ["/api/embed", "/v1/embeddings"])
def test_errors_name_the_model_and_not_the_folder_of_its_package(packages, shallow_package, path):
    name = packages.offers[0].name
    with TestClient(application(packages)) as client:
        answer = client.post(path, json={"model": name, "input": "Hello"})
    assert answer.status_code == 400
    assert f"{name}: this package is no embedding model" in answer.text
    assert str(shallow_package) not in answer.text
