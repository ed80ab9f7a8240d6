"""Which replica has read which beginnings of prompts."""

from __future__ import annotations

import json

from rdrr.serve.ray.beginnings import BLOCK, Beginnings

SYSTEM = {"role": "system", "content": "You answer in short sentences. " * 40}


def chat(*texts: str, **fields: object) -> bytes:
    roles = ("user", "assistant") * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return json.dumps({**fields, "messages": [SYSTEM, *messages]}).encode()


def test_a_later_turn_leads_to_the_replica_that_read_the_former_one():
    beginnings = Beginnings()
    first = "What is a ship? " * 20
    beginnings.add(chat("Who was Abraham? " * 20), "b")
    beginnings.add(chat(first), "a")
    later = chat(first, "A vessel.", "And a boat?", max_tokens=9, stream=True)
    assert beginnings.reader(later, ["a", "b"]) == "a"
    assert beginnings.reader(chat("Who was Abraham? " * 20, "x"), ["a", "b"]) == "b"


def test_a_replica_that_is_gone_gives_its_beginnings_to_the_next():
    beginnings = Beginnings()
    beginnings.add(chat("Hello"), "a")
    assert beginnings.reader(chat("Hello"), ["b"]) is None
    beginnings.add(chat("Hello"), "b")
    assert beginnings.reader(chat("Hello"), ["b"]) == "b"


def test_another_model_or_other_tools_are_another_beginning():
    beginnings = Beginnings()
    beginnings.add(chat("Hello", model="x"), "a")
    assert beginnings.reader(chat("Hello", model="x", seed=3), ["a"]) == "a"
    assert beginnings.reader(chat("Hello", model="y"), ["a"]) is None
    assert beginnings.reader(chat("Hello", model="x", tools=[{"type": "function"}]), ["a"]) is None


def test_the_beginnings_used_longest_ago_are_forgotten():
    beginnings = Beginnings(most=8)
    beginnings.add(json.dumps({"prompt": "a" * BLOCK * 3}).encode(), "a")
    beginnings.add(json.dumps({"prompt": "b" * BLOCK * 8}).encode(), "b")
    assert beginnings.reader(json.dumps({"prompt": "b" * BLOCK * 8}).encode(), ["a", "b"]) == "b"
    assert beginnings.reader(json.dumps({"prompt": "a" * BLOCK * 3}).encode(), ["a", "b"]) is None


def test_what_is_no_request_has_no_beginnings():
    beginnings = Beginnings()
    for body in (b"", b"{", b"[1]", b'"text"', b"\xff", b"[" * 100_000):
        beginnings.add(body, "a")
        assert beginnings.reader(body, ["a"]) is None
