"""A package without a tokenizer works by token ids, and says what to do where it is given text."""

from __future__ import annotations

import pytest
import rdrr
from rdrr_format.errors import ManifestError
from support import tiny_tokenizers as tiny
from support.commands import rdrr as run
from support.scripted_models import write_scripted

IDS = [5, 9, 7]
PLAIN = {"chat_template": "{{ messages[0].content }}"}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package whose GGUF-like source had no tokenizer that can be read."""
    folder = tmp_path_factory.mktemp("without")
    source = write_scripted(
        folder / "source", tiny.byte_level(), IDS, end=2, tokenizer_config=PLAIN
    )
    (source / "tokenizer.json").unlink()
    result = rdrr.convert(source, folder / "package", quantize="f32")
    assert any("takes and gives token ids only" in text for text in result.notes)
    return folder / "package"


@pytest.fixture(scope="module")
def model(package):
    with rdrr.load(package, backend="cpu") as loaded:
        assert not loaded.has_tokenizer
        yield loaded


def test_ids_are_continued_without_a_tokenizer(model):
    generation = model.generate(IDS[:1], max_tokens=8)
    assert (generation.read(), generation.token_ids) == ("", [*IDS[1:], 2])
    (completion,) = model.generate_batch([IDS[:1]], max_tokens=8)
    assert (completion.text, completion.token_ids) == ("", [*IDS[1:], 2])
    session = model.session(IDS[:1])
    assert session.generate(max_tokens=8).read() == ""
    assert session.ids == [*IDS, 2]
    assert model.logits(IDS).argmax(axis=-1).tolist() == [*IDS[1:], 2]
    assert model.loglikelihoods(IDS[:1], [IDS[1:]])[0].is_greedy


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.generate("a"),
        lambda model: model.generate(IDS, stop="a"),
        lambda model: model.generate(IDS, response_format={"type": "json_object"}),
        lambda model: model.chat([{"role": "user", "content": "a"}]),
        lambda model: model.session("a"),
        lambda model: model.session(IDS).text,
        lambda model: model.encode("a"),
        lambda model: model.decode(IDS),
    ],
)
def test_text_is_refused_with_what_to_do(model, call):
    with pytest.raises(ManifestError, match=r"has no tokenizer.*give ids.*convert it again"):
        call(model)


def test_the_command_continues_ids(package):
    words = ("generate", package, "--backend", "cpu", "-n", 8, "--prompt-ids")
    assert run(*words, "5").out == "9 7 2\n"
    result = run(*words, "5, 9", "--json", "--logprobs", 1).json()
    assert (result["text"], result["token_ids"]) == ("", [7, 2])
    refused = run(*words[:-1], "-p", "a")
    assert (refused.code, "has no tokenizer" in refused.err) == (1, True)
    for wrong in (("five",), ("5", "-p", "a")):
        assert run(*words, *wrong).code == 2
