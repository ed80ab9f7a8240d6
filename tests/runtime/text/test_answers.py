"""The parts of answers, whole and in pieces, by vectors that the browser runtime reads too."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from rdrr_runtime.text.answer_formats import PLAIN, recognise
from rdrr_runtime.text.answers import AnswerReader, Part, joined
from rdrr_runtime.text.call_literals import LiteralReader

VECTORS = json.loads(
    (Path(__file__).parents[2] / "data/vectors/answers.json").read_text(encoding="utf-8")
)["cases"]
HERMES = recognise("<tool_call></think>")
SCHEMAS = {"f": {"type": "object"}}


def parts_of(case: dict, pieces: list[str]) -> list[dict]:
    reader = AnswerReader(
        recognise(case["template"]), case["tools"], prompt=case["prompt"], forced=case["forced"]
    )
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return [shown(part) for part in joined([*parts, *reader.end()])]


def shown(part: Part) -> dict:
    if part.kind == "call":
        return {"kind": "call", "name": part.name, "arguments": json.loads(part.text)}
    return {"kind": part.kind, "text": part.text}


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["about"])
def test_an_answer_has_the_same_parts_whole_and_in_any_pieces(case):
    text = case["text"]
    assert parts_of(case, [text]) == case["parts"]
    assert parts_of(case, list(text)) == case["parts"]
    random = Random(len(text))
    for _ in range(20):
        cuts = sorted(random.sample(range(len(text) + 1), min(4, len(text))))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert parts_of(case, pieces) == case["parts"]


def test_text_comes_as_soon_as_it_is_certain():
    reader = AnswerReader(HERMES, SCHEMAS)
    assert reader.feed("Hello <b>") == [Part("content", "Hello <b>")]
    assert reader.feed(" and <tool") == [Part("content", " and")]
    assert reader.feed("s>") == [Part("content", " <tools>")]
    assert reader.feed('<tool_call>{"name": "f"}') == []
    assert reader.feed("</tool_call>") == [Part("call", "{}", "f")]


def test_arguments_stay_as_they_are_written_where_they_are_json():
    reader = AnswerReader(recognise("<｜tool▁call▁begin｜>"), SCHEMAS)
    written = '{"a":1,  "b": [2]}'
    reader.feed(f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{written}<｜tool▁call▁end｜>")
    reader = AnswerReader(recognise("<｜tool▁call▁begin｜>"), SCHEMAS, forced="f")
    assert reader.feed(written) + reader.end() == [Part("call", written, "f")]


def test_special_tokens_of_the_format_are_kept_and_others_are_not():
    harmony = recognise("<|channel|><|message|>")
    assert harmony.shows("<|call|>")
    assert harmony.shows("<|message|>")
    assert not harmony.shows("<|endoftext|>")
    assert not PLAIN.shows("<|call|>")
    assert recognise("{{ messages }}") == PLAIN


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a"', '{"a": }', "[1, 2", '"open', "[" * 100, "'" + "x" * 9, "{a: {b: 1}"],
    ids=repr,
)
def test_a_value_that_does_not_end_is_an_error(text):
    with pytest.raises(ValueError, match=r"missing|end|deep"):
        LiteralReader(text).value()
    assert LiteralReader('{"a": [1, "x"]}').value() == {"a": [1, "x"]}


def test_a_long_answer_of_open_marks_takes_no_long_time():
    """Marks that never end are searched once, not again for each piece."""
    reader = AnswerReader(recognise("<tool_call>\n<function="), SCHEMAS)
    reader.feed("<tool_call>")
    for _ in range(20_000):
        reader.feed("<parameter=a>")
    (part,) = joined(reader.end())
    assert part.text.startswith("<tool_call><parameter=a>")
