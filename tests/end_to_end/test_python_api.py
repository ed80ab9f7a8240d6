"""The Python API as the README shows it."""

from __future__ import annotations

import pytest
import rdrr
from rdrr_format.errors import DeviceError, UsageError

PROMPT = "And it came to pass"


@pytest.fixture(scope="module")
def model(made_package):
    with rdrr.load(made_package, backend="cpu", context=256) as loaded:
        yield loaded


def test_pieces_of_text_are_the_decoded_ids(model):
    generation = model.generate(PROMPT, max_tokens=20)
    pieces = list(generation)
    assert len(pieces) > 1
    assert "".join(pieces) == model.decode(generation.token_ids)
    assert len(generation.token_ids) == 20
    assert generation.stats.finish == "length"
    assert generation.prompt_ids == model.encode(PROMPT)


def test_greedy_ids_are_the_likeliest_of_the_teacher_forced_logits(model):
    generation = model.generate(PROMPT, max_tokens=8)
    generation.read()
    ids = generation.prompt_ids + generation.token_ids
    likeliest = model.logits(ids).argmax(axis=1)
    first = len(generation.prompt_ids) - 1
    assert likeliest[first:-1].tolist() == generation.token_ids


def test_token_ids_are_a_prompt_too(model):
    ids = model.encode(PROMPT)
    assert model.generate(ids, max_tokens=5).read() == model.generate(PROMPT, max_tokens=5).read()


def test_a_generation_that_is_closed_gives_no_more_text(model):
    generation = model.generate(PROMPT, max_tokens=50)
    assert next(generation)
    generation.close()
    assert list(generation) == []


def test_a_package_opens_with_tensors_that_are_read_when_asked_for(made_package):
    package = rdrr.open_package(made_package)
    assert package.manifest.model_id == "small-llama"
    assert package.dequantize("model.norm.weight").shape == (256,)


def test_validation_is_a_report(made_package):
    report = rdrr.validate(made_package, deep=True)
    assert report.ok()
    assert report.model_id == "small-llama"
    assert report.faults == ()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"backend": "abacus"}, UsageError),
        ({"backend": "cpu", "context": 0}, UsageError),
        ({"kernel_hints": {"speed": "high"}}, UsageError),
        ({"backend": "wgpu", "kv_dtype": "f64"}, UsageError),
        ({"adapter": "no such adapter"}, DeviceError),
    ],
)
def test_a_wrong_option_of_load_is_an_error_of_the_tree(made_package, options, error):
    with pytest.raises(error):
        rdrr.load(made_package, **options)
