"""A tokenizer that is exported to a GGUF and read back gives the same token ids."""

from __future__ import annotations

import json

import pytest
from rdrr_converter.export._gguf_tokenizer import tokenizer_metadata
from rdrr_converter.gguf.pretokenizers import PRETOKENIZERS
from rdrr_converter.gguf.tokenizer import tokenizer_files
from rdrr_format.tokenizer_settings import named_templates
from support.packages import llama_manifest, write_random_package
from support.safetensor_files import LLAMA_CONFIG
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = (
    "And it came to pass, that the king said unto him: go!",
    "def main(argv):\n\treturn 12345 + x[0]  # don't\n\n\n",
    "Grüße, 你好, e\u0301té \U0001f600  <s>hi</s> I'LL we've",
    "   leading and   many spaces   ",
    "",
)
ROWS = 700


@pytest.fixture
def through_gguf(tmp_path, rng):
    """Return a function that exports a tokenizer and reads it back, and returns all notes."""

    def through(tokenizer, *, settings=None, block=None, rows=ROWS, architecture=""):
        folder = tmp_path / "package"
        manifest = llama_manifest("Q8_0")
        manifest["tokenizer"] = {"type": "bundled", "file": "tokenizer.json", **(block or {})}
        manifest["eos_token_id"] = [2, 3]
        package = write_random_package(folder, manifest, rng)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings or {}), encoding="utf-8")
        entries, notes = tokenizer_metadata(package, rows, architecture)
        files, generation, more = tokenizer_files(entries, "m.gguf")
        return entries, files, generation, (*notes, *more)

    return through


def byte_level(row):
    """Train a small byte-level BPE with the pre-tokenizer of a row of the table."""
    text = json.loads(Tokenizer(models.BPE(ignore_merges=row.ignores_merges)).to_str())
    text |= {"pre_tokenizer": row.steps, "normalizer": row.normalizer}
    tokenizer = Tokenizer.from_str(json.dumps(text, default=dict))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<pad>", "<s>", "</s>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, json.dumps(LLAMA_CONFIG)] * 3, trainer)
    return json.loads(tokenizer.to_str())


@pytest.mark.parametrize(
    "name", ["gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "smollm", "tekken", "qwen35", "gpt-4o"]
)
def test_a_known_pre_tokenizer_gets_its_name(through_gguf, name):
    tokenizer = byte_level(PRETOKENIZERS[name])
    entries, files, _, notes = through_gguf(tokenizer)
    assert notes == ()
    assert PRETOKENIZERS[entries["tokenizer.ggml.pre"]] == PRETOKENIZERS[name]
    assert len(entries["tokenizer.ggml.tokens"]) == ROWS
    assert "tokenizer.huggingface.json" not in entries
    ours, theirs = Tokenizer.from_str(files["tokenizer.json"].decode()), json.dumps(tokenizer)
    for text in TEXTS:
        assert ours.encode(text).ids == Tokenizer.from_str(theirs).encode(text).ids


def test_an_unknown_pre_tokenizer_is_included_whole_with_a_note(through_gguf):
    tokenizer = byte_level(PRETOKENIZERS["gpt-2"])
    tokenizer["pre_tokenizer"]["add_prefix_space"] = True
    entries, files, _, notes = through_gguf(tokenizer)
    assert entries["tokenizer.ggml.pre"] == "default"
    assert len(notes) == 1
    assert "knows no llama.cpp name" in notes[0]
    assert json.loads(files["tokenizer.json"]) == tokenizer


def pieces():
    """Return a SentencePiece-like tokenizer, as Llama 2 and Gemma have."""
    order = ["ab", "▁a", "abc", "▁ab", "cd", "▁abc"]
    merges = [["a", "b"], ["▁", "a"], ["ab", "c"], ["▁a", "b"], ["▁", "ab"], ["c", "d"]]
    merges += [["▁ab", "c"], ["▁", "abc"]]
    names = ["<unk>", "<s>", "</s>", "<end_of_turn>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [*order, "▁", "a", "b", "c", "d"]
    added = [
        {"id": index, "content": names[index], "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for index in range(4)
    ]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {name: index for index, name in enumerate(names)},
            "merges": merges,
        },
    }


@pytest.mark.parametrize("prefix", [True, False])
def test_the_scores_of_pieces_reproduce_their_merges(through_gguf, prefix):
    tokenizer = pieces()
    if not prefix:
        tokenizer["normalizer"] = tokenizer["normalizer"]["normalizers"][1]
    entries, files, _, notes = through_gguf(tokenizer)
    assert notes == ()
    assert entries["tokenizer.ggml.model"] == "llama"
    assert entries["tokenizer.ggml.add_space_prefix"] is prefix
    kinds = entries["tokenizer.ggml.token_type"]
    assert kinds[:5] == [2, 3, 3, 3, 6]
    assert kinds[-1] == 5
    written = {**json.loads(files["tokenizer.json"])}
    ours, theirs = (Tokenizer.from_str(json.dumps(document)) for document in (written, tokenizer))
    for text in ("abc", "a abcd ab", "cdcd  dab", "xé abc", "aabbccdd"):
        assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.encode("abc").ids != ours.encode("ab c").ids


def test_the_merges_of_gemma_4_are_stated(through_gguf):
    tokenizer = pieces()
    tokenizer["normalizer"] = tokenizer["normalizer"]["normalizers"][1]
    merges = [" ".join(merge) for merge in tokenizer["model"]["merges"]]
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][::-1]  # scores could not say this
    entries, files, _, notes = through_gguf(tokenizer, architecture="gemma4")
    assert notes == ()
    assert entries["tokenizer.ggml.model"] == "gemma4"
    assert entries["tokenizer.ggml.merges"] == merges[::-1]
    ours, theirs = (
        Tokenizer.from_str(one) for one in (files["tokenizer.json"].decode(), json.dumps(tokenizer))
    )
    for text in ("abc", "a abcd ab", "cdcd  dab", "x\u00e9 abc", "aabbccdd"):
        assert ours.encode(text).ids == theirs.encode(text).ids


@pytest.mark.parametrize("longest", [1, 20], ids=["single bytes", "words without merges"])
def test_a_byte_level_tokenizer_without_merges_is_read_back(through_gguf, longest):
    """A file of words must not look like those whose merges are lost."""
    tokenizer = byte_level(PRETOKENIZERS["gpt-2"])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    words = tokenizer["model"]["vocab"]
    words = {word: i for word, i in words.items() if len(word) <= longest or word in special}
    tokenizer["model"] |= {"vocab": words, "merges": []}
    entries, files, _, notes = through_gguf(tokenizer)
    assert notes == ("llama.cpp refuses a byte-level tokenizer without merges",)
    assert ("tokenizer.huggingface.json" in entries) == (longest > 1)
    ours, theirs = (
        Tokenizer.from_str(text)
        for text in (files["tokenizer.json"].decode(), json.dumps(tokenizer))
    )
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text).ids


def test_special_tokens_and_the_chat_template_are_exported(through_gguf):
    settings = {"chat_template": "{{ messages }}", "unk_token": {"content": "<pad>"}}
    block = {"bosTokenId": 1, "padTokenId": 0, "addBosToken": True, "addEosToken": False}
    tokenizer = byte_level(PRETOKENIZERS["gpt-2"])
    entries, files, generation, _ = through_gguf(tokenizer, settings=settings, block=block)
    assert entries["tokenizer.ggml.unknown_token_id"] == 0
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0}
    read = json.loads(files["tokenizer_config.json"])
    assert (read["add_bos_token"], read["add_eos_token"]) == (True, False)
    assert read["chat_template"] == "{{ messages }}"
    assert read["bos_token"] == "<s>"


NAMED = {"default": "{{ messages }}", "rag": "{{ documents }}", "tool_use": "{{ tools }}"}


@pytest.mark.parametrize(
    "templates",
    [
        pytest.param(NAMED, id="an object"),
        pytest.param([{"name": key, "template": text} for key, text in NAMED.items()], id="a list"),
        pytest.param({"rag": "{{ documents }}"}, id="no default"),
        pytest.param({"default": "{{ messages }}"}, id="only a default"),
    ],
)
def test_templates_with_names_are_exported_and_read_back(through_gguf, templates):
    tokenizer = byte_level(PRETOKENIZERS["gpt-2"])
    entries, files, _, _ = through_gguf(tokenizer, settings={"chat_template": templates})
    names = named_templates(templates)
    assert entries.get("tokenizer.chat_template") == names.get("default")
    others = [name for name in names if name != "default"]
    assert entries.get("tokenizer.chat_templates", []) == others
    read = json.loads(files["tokenizer_config.json"])["chat_template"]
    assert named_templates(read) == names


def test_a_tokenizer_that_llama_cpp_does_not_support_is_included_with_a_note(through_gguf):
    tokenizer = json.loads(Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]")).to_str())
    entries, files, _, notes = through_gguf(tokenizer)
    assert entries["tokenizer.ggml.model"] == "none"
    assert "WordLevel" in notes[0]
    assert json.loads(files["tokenizer.json"]) == tokenizer


def test_tokens_without_an_embedding_row_are_left_out_with_a_note(through_gguf):
    tokenizer = byte_level(PRETOKENIZERS["gpt-2"])
    size = len(tokenizer["model"]["vocab"])
    for rows, said in ((size, False), (size - 3, True)):
        entries, _, _, notes = through_gguf(tokenizer, rows=rows)
        assert len(entries["tokenizer.ggml.tokens"]) == rows
        assert ("3 tokens have no row in the embedding and are left out" in notes) == said
