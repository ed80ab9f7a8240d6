"""Texts between two others, and what the slots do."""

from __future__ import annotations

import json

import openai
import pytest
from rdrr.serve import infill
from rdrr.serve.infill import Marks, infill_prompt
from support.serving import Running, scripted

FIRST, SECOND, THIRD = "<|im_start|>", "<|im_end|>", "<|mask|>"
"""Tokens of the bundled vocabulary, which stand for those for infilling."""


@pytest.fixture
def filling(worker, monkeypatch):
    """Return the ids of a text of the vocabulary, which has tokens for infilling from now on."""
    monkeypatch.setattr(infill, "MARKS", (Marks("<none>", "<none>"), Marks(FIRST, SECOND, THIRD)))
    return worker.model.encode_as_is


def test_a_prompt_has_both_texts_and_ends_where_the_answer_stands(worker, filling, monkeypatch):
    wanted = filling(f"{FIRST}def f(x):\n{SECOND}\nreturn y{THIRD}")
    assert infill_prompt(worker.model, "def f(x):\n", "\nreturn y") == wanted
    monkeypatch.setattr(infill, "MARKS", (Marks(FIRST, SECOND, suffix_first=True),))
    wanted = filling(f"{SECOND}after{FIRST}before")
    assert infill_prompt(worker.model, "before", "after") == wanted


def test_tokens_in_the_texts_are_text(worker, filling):
    ids = infill_prompt(worker.model, f"a{SECOND}b", "c")
    assert ids.count(filling(SECOND)[0]) == 1
    assert worker.model.decode(ids) == f"a{SECOND}bc"


def test_all_interfaces_fill_gaps(worker, filling):
    wanted = filling(f"{FIRST}a{SECOND}b{THIRD}")
    with scripted(worker.model, *["between"] * 4) as (url, script):
        server = Running(int(url.rpartition(":")[2]), script)

        def post(path: str, body: dict) -> bytes:
            return server.ask("POST", path, json.dumps(body).encode())[1]

        asked = {"input_prefix": "a", "input_suffix": "b"}
        whole = json.loads(post("/infill", asked))
        lines = post("/infill", asked | {"stream": True}).decode().split("\n\n")
        parts = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        generated = {"prompt": "a", "suffix": "b", "stream": False}
        assert json.loads(post("/api/generate", generated))["response"] == "between"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            answer = client.completions.create(model="small-llama", prompt="a", suffix="b")
    assert (whole["content"], whole["stop"], whole["tokens_evaluated"]) == ("between", True, 5)
    assert "".join(part["content"] for part in parts) == "between"
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert answer.choices[0].text == "between"
    assert [job.prompt for job in script.asked] == [wanted] * 4


@pytest.mark.usefixtures("filling")
def test_no_tokens_are_generated_where_none_are_asked_for(worker):
    with scripted(worker.model, "between") as (url, script):
        server = Running(int(url.rpartition(":")[2]), script)
        for stated in ({"n_predict": 0}, {"n_predict": 0, "stream": True}):
            body = json.dumps({"input_prefix": "a", **stated}).encode()
            status, answer = server.ask("POST", "/infill", body)
            assert (status, b'"tokens_predicted":0' in answer.replace(b" ", b"")) == (200, True)
        assert script.asked == []
        assert server.ask("POST", "/infill", b'{"input_prefix": "a", "n_predict": -1}')[0] == 200
        assert server.ask("POST", "/infill", b'{"input_prefix": "a", "n": 2}')[0] == 400


def test_a_vocabulary_without_such_tokens_is_refused(server):
    status, answer = server.ask("POST", "/infill", b'{"input_prefix": "a"}')
    assert (status, b"fills no gaps" in answer) == (400, True)


def test_slots_are_listed(server, worker):
    slots = json.loads(server.ask("GET", "/slots")[1])
    assert [slot["id"] for slot in slots] == list(range(worker.slots))
    assert not any(slot["is_processing"] for slot in slots)
