"""Ollama's routes: lines of JSON, and its names of options."""

from __future__ import annotations

import json

import pytest
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
    assert "messages" in shown["template"] or "for m in" in shown["template"]
    assert "version" in json.loads(server.ask("GET", "/api/version")[1])


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
