"""A GGUF's end tokens are those of llama.cpp; the right values were read from its library.

Recorded with `llama_vocab_is_eog` of the build in @node-llama-cpp/linux-x64 3.22.1.
"""

from __future__ import annotations

import json

import pytest
from rdrr_converter.gguf.tokenizer import CONTROL, NORMAL, USER_DEFINED, tokenizer_files

EOS = "<e>"
BY_NAME = [
    "</s>",
    "<PAD>",
    "<REPO>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "<fim-pad>",
    "<fim-repo>",
    "<fim_pad>",
    "<reponame>",
    "<turn|>",
    "<|calls|>",
    "<|call|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|file_sep|>",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|flush|>",
    "<|im_end|>",
    "<|repo_name|>",
    "<|return|>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[EOT]",
    "[PAD]",
    "[e~[",
    "_<EOT>",
    "<EOT>",
    "<|tool_response>",
]
NOT_BY_NAME = [
    "<seed:eos>",
    "<|END_OF_TURN_TOKEN|>",
    "<|EOT|>",
    "<|end_of_turn|>",
    "<|endofresponse|>",
    "<|endofturn|>",
    "<|eos|>",
    "<|eot|>",
    "<|role_end|>",
    "<|turn_end|>",
    "[|endofturn|]",
    "<|user|>",
    "<|observation|>",
    "<|im_start|>",
    "<eod>",
]


def files(tokens, kind=CONTROL, **stated):
    """Return the tokenizer and the generation configuration of a GGUF with some tokens."""
    vocabulary = ["a", "b", "ab", *tokens]
    entries = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [NORMAL] * 3 + [kind] * len(tokens),
        "tokenizer.ggml.merges": ["a b"],
    }
    entries |= {f"tokenizer.ggml.{key}_token_id": vocabulary.index(stated[key]) for key in stated}
    written, generation, _ = tokenizer_files(entries, "m.gguf")
    return json.loads(written["tokenizer.json"]), generation, vocabulary


def ends(tokens, kind=CONTROL, **stated):
    _, generation, vocabulary = files(tokens, kind, **stated)
    ids = generation["eos_token_id"]
    return {vocabulary[index] for index in (ids if isinstance(ids, list) else [ids])}


def test_tokens_with_a_known_name_end_a_text_and_no_others():
    assert all(ends([name, EOS], eos=EOS) == {name, EOS} for name in BY_NAME)
    assert all(ends([name, EOS], eos=EOS) == {EOS} for name in NOT_BY_NAME)


@pytest.mark.parametrize(
    ("tokens", "stated", "right"),
    [
        (["<|end|>", "<|return|>", "<|call|>"], {}, ["<|return|>", "<|call|>"]),
        (["<|end|>", "<|flush|>", "<|calls|>"], {}, ["<|flush|>", "<|calls|>"]),
        (["<|end|>", "<|return|>"], {}, ["<|end|>", "<|return|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], {"eos": "<|end|>"}, ["<|return|>", "<|call|>"]),
        (["<|tool_response>", "</s>"], {}, ["<|tool_response>"]),
        (["<｜end▁of▁sentence｜>", "<|im_end|>"], {}, ["<｜end▁of▁sentence｜>", "<|im_end|>"]),
        (["<|fim_pad|>", "<x>"], {"fim_pad": "<x>"}, ["<x>"]),
        (["<|fim_repo|>", "<|repo_name|>"], {}, ["<|fim_repo|>"]),
        (["<x>", "<y>"], {"eot": "<x>", "eom": "<y>"}, ["<x>", "<y>"]),
    ],
)
def test_ends_that_depend_on_other_tokens(tokens, stated, right):
    first = {"eos": EOS} | stated
    assert ends([*tokens, EOS], **first) == {*right, *([EOS] if first["eos"] == EOS else [])}


def test_the_stated_end_comes_first():
    _, generation, vocabulary = files(["<|endoftext|>", "<|im_end|>"], eos="<|im_end|>")
    assert next(vocabulary[index] for index in generation["eos_token_id"]) == "<|im_end|>"


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED, NORMAL])
def test_an_end_token_is_special_whatever_its_type(kind):
    tokenizer, generation, vocabulary = files(["<|im_end|>", "<think>"], kind)
    special = [token["content"] for token in tokenizer["added_tokens"] if token["special"]]
    assert "<|im_end|>" in special
    assert ("<think>" in special) == (kind == CONTROL)
    assert generation["eos_token_id"] == vocabulary.index("<|im_end|>")
