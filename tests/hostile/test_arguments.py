"""Arguments of the Python API with the wrong type or size: each raises one RdrrError."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rdrr
from rdrr_format.errors import RdrrError, UsageError
from rdrr_runtime.sampling.params import MAX_SEED, SamplingParams

PROMPT = "And it came to pass"
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def model(
    shallow_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[rdrr.Model]:
    out = tmp_path_factory.mktemp("arguments") / "package"
    rdrr.convert(shallow_checkpoint, out)
    with rdrr.load(out, backend="cpu", context=128) as loaded:
        yield loaded


class Odd:
    """A value whose `repr` raises."""

    def __repr__(self) -> str:
        raise ValueError("no")


SAMPLING: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 0.5, 1, np.float32(0.5)], ["hot", NAN, INF, -1, True, [1], Odd(), 1j]),
    "top_k": ([0, 40, np.int64(3), 2**31 - 1], [1.5, "7", -1, 2**31, 10**5000, True, NAN]),
    "top_p": ([0.5, 1, np.float64(0.1)], [0, 1.5, NAN, "0.5", object()]),
    "min_p": ([0, 0.5, 1], [-0.1, NAN, "a", []]),
    "repeat_penalty": ([1, 1.1], [0, NAN, INF, "1", {}]),
    "frequency_penalty": ([0, -1.5], [NAN, INF, "1", 10**5000]),
    "presence_penalty": ([0, 2], [NAN, -INF, b"1"]),
    "logit_bias": (
        [{}, {3: 1}, {np.int64(3): np.float32(-100)}],
        [{3: "x"}, {"3": 1.0}, {3: NAN}, {1.5: 1.0}, [3], "3=1", 5, {True: 1.0}],
    ),
    "seed": ([0, 7, MAX_SEED, np.uint64(5)], [object(), -1, MAX_SEED + 1, 1.5, "7", 10**5000]),
    "sampled_tokens": ([0, 5], [-1, 2**31, 1.5, "1", None]),
}


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_parameters_are_checked_in_one_place(name):
    sound, wrong = SAMPLING[name]
    for value in sound:
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in wrong:
        with pytest.raises(UsageError, match=rf"(--)?{name.replace('_', '.')}"):
            SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["temperature", "logit_bias"])
def test_none_is_accepted_only_where_the_type_allows_it(name):
    assert SamplingParams(top_k=None).top_k is None
    with pytest.raises(UsageError, match="wrong type"):
        SamplingParams(**{name: None})


GENERATE: dict[str, tuple[list[Any], list[Any]]] = {
    "max_tokens": ([1, np.int64(2), 3], [0, -1, "7", 1.5, 2**31, 2**63, None, True, Odd()]),
    "interval": ([1, 3, "auto"], [0, "8", 2**63, None, Odd()]),
    "stop_ids": ([(), [1], np.array([1, 2])], [5, "7", ["a"], [1.5], None, b"1", [2**70]]),
    "stop": (["xyz", [], ["xyz"]], [5, b"x", [b"x"], [5], None, [None]]),
    "context_shift": ([None, 0, 4], [-1, 1.5, "4", 2**63]),
    "logprobs": ([None, 0, 20], [-1, 21, "1", 1.5]),
    "temperature": ([0.5], ["hot", NAN]),
    "response_format": (
        [None, {"type": "text"}],
        [5, "json", {"type": object()}, {"type": "regex", "regex": 5}, [1]],
    ),
}


@pytest.mark.parametrize("name", GENERATE)
def test_wrong_arguments_of_a_generation_are_refused(model, name):
    sound, wrong = GENERATE[name]
    for value in sound:
        options = {"max_tokens": 2, name: value}
        assert isinstance(model.generate(PROMPT, **options).read(), str)
    for value in wrong:
        with pytest.raises(UsageError) as raised:
            model.generate(PROMPT, **{name: value})
        assert len(str(raised.value)) < 2000


@pytest.mark.parametrize("name", ["max_tokens", "interval", "sequences", "stop_ids"])
def test_wrong_arguments_of_a_batch_are_refused(model, name):
    assert len(model.generate_batch([PROMPT, [1, 2]], max_tokens=2)) == 2
    for value in (0, "7", 1.5, 2**63, None):
        with pytest.raises(UsageError):
            model.generate_batch([PROMPT], **{name: value})


def test_one_string_is_one_stop_string(model):
    free = model.generate(PROMPT, max_tokens=12).read()
    stop = free[len(free) // 2 :][:3]
    assert len(stop) == 3
    before = free[: free.index(stop)]
    for given in (stop, [stop], (stop,), iter([stop])):
        held = model.generate(PROMPT, max_tokens=12, stop=given)
        assert held.read() == before
        assert held.stopped_by == stop
    session = model.session(PROMPT)
    assert session.generate(max_tokens=12, stop=stop).read() == before


@pytest.mark.parametrize("wrong", [b"And", bytearray(b"And"), memoryview(b"And")])
def test_a_prompt_in_bytes_is_refused(model, wrong):
    session = model.session(PROMPT)
    for call in (
        lambda: model.generate(wrong),
        lambda: model.generate_batch([wrong]),
        lambda: model.session(wrong),
        lambda: session.append(wrong),
        lambda: model.encode(wrong),
    ):
        with pytest.raises(UsageError, match=r"bytes|not a text"):
            call()


@pytest.mark.parametrize("wrong", [5, None, [1.5], ["a"], [None], [2**70], {1.5: 2}, Odd()])
def test_a_prompt_that_is_neither_text_nor_ids_is_refused(model, wrong):
    ids = model.encode(PROMPT)
    plain = model.generate(PROMPT, max_tokens=2).read()
    for sound in (ids, tuple(ids), np.array(ids), iter(ids)):
        assert model.generate(sound, max_tokens=2).read() == plain
    for call in (model.generate, lambda prompt: model.generate_batch([prompt])):
        with pytest.raises(UsageError):
            call(wrong)


def test_the_prompts_of_a_batch_must_be_a_list(model):
    for wrong in (PROMPT, b"And", 5, None):
        with pytest.raises(UsageError, match="prompts"):
            model.generate_batch(wrong)


@pytest.mark.parametrize("wrong", [-1, 2**70, 1.5, "a", None])
def test_invalid_token_ids_are_not_decoded(model, wrong):
    assert model.decode(model.encode(PROMPT))
    with pytest.raises(UsageError, match="not a token id"):
        model.decode([1, wrong])


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": value}}


def circular_schema() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    return schema


def deep_schema() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(50_000):
        schema = {"items": schema}
    return schema


def nested_nots() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(900):
        schema = {"not": schema}
    return schema


SCHEMAS = {
    "a dictionary that contains itself": circular_schema(),
    "50,000 levels": deep_schema(),
    "a reference to itself": {"$ref": "#"},
    "two references to each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "a part that is the whole schema": {"allOf": [{"$ref": "#"}]},
    "a single choice that is the whole schema": {"anyOf": [{"$ref": "#"}]},
    "a reference to nothing": {"$ref": "#/nowhere"},
    "a reference to a server": {"$ref": "http://localhost:1/schema"},
    "a set in place of a type": {"type": {1, 2}},
    "a key that is not a string": {"properties": {(1, 2): {}}},
    "a string of impossible length": {"type": "string", "minLength": 9999999999},
    "900 nested negations": nested_nots(),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_unsupported_schema_is_refused(model, name):
    with pytest.raises(UsageError, match="JSON schema") as raised:
        model.generate(PROMPT, response_format=schema(SCHEMAS[name]))
    assert len(str(raised.value)) < 1000


def test_a_schema_may_refer_to_itself_if_the_recursion_is_bounded(model):
    tree = {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}
    text = model.generate(PROMPT, response_format=schema(tree), max_tokens=20).read()
    assert text.startswith("[")


@pytest.mark.parametrize("pattern", ["(" * 50_000, "(?=a)b", "(a", "a" * (1 << 21), "\ud800"])
def test_an_unsupported_regular_expression_is_refused(model, pattern):
    held = model.generate(PROMPT, response_format={"type": "regex", "regex": "a{3}"})
    assert held.read() == "aaa"
    with pytest.raises(RdrrError, match="regular expression"):
        model.generate(PROMPT, response_format={"type": "regex", "regex": pattern})
