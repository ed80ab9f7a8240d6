"""Tokenizers rebuilt from GGUF metadata give the same ids as the original tokenizers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.gguf.pretokenizers import PRETOKENIZERS
from rdrr_converter.gguf.tokenizer import tokenizer_files
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from support.gguf_entries import tokenizer_entries
from support.gguf_files import write_gguf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EXAMPLE = Path(__file__).parents[3] / "examples" / "small-llama"
TEXTS = (
    "And it came to pass, that the king said unto him: go!",
    "def main(argv):\n\treturn 12345 + x[0]  # don't\n\n\n",
    "Grüße, 你好, e\u0301té \U0001f600  <s>hi</s> I'LL we've",
    "   leading and   many spaces   ",
    "",
)


def texts(rng):
    """Return fixed texts, and random ones that mostly resemble no language."""
    alphabet = list("aAeE1 2\n\t.,'sl\u00e9\u4f60\U0001f600<>|-")
    return [*TEXTS, *("".join(rng.choice(alphabet, 40)) for _ in range(20))]


def rebuilt(entries, name="m.gguf"):
    files, _, notes = tokenizer_files(entries, name)
    assert notes == ()
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def test_the_bundled_tokenizer_survives_a_gguf(tmp_path, rng):
    source = open_source(write_gguf(EXAMPLE, tmp_path / "m.gguf"))
    ours = Tokenizer.from_str(source.content("tokenizer.json").decode())
    theirs = Tokenizer.from_file(str(EXAMPLE / "tokenizer.json"))
    for text in texts(rng):
        ids = theirs.encode(text).ids
        assert ours.encode(text).ids == ids
        assert ours.decode(ids) == theirs.decode(ids)
    settings = json.loads(source.content("tokenizer_config.json"))
    original = json.loads((EXAMPLE / "tokenizer_config.json").read_text(encoding="utf-8"))
    for key in ("add_bos_token", "bos_token", "eos_token", "chat_template"):
        assert settings[key] == original[key]
    # The example's chat template uses <|im_end|>, so it ends a text like the stated </s>.
    assert source.generation_config["eos_token_id"] == [2, theirs.token_to_id("<|im_end|>")]
    assert json.loads(source.content("generation_config.json")) == source.generation_config


def trained(pre):
    """Train a small BPE tokenizer with the pre-tokenizer `pre`, using the library itself."""
    row = PRETOKENIZERS[pre]
    tokenizer = Tokenizer(models.BPE(ignore_merges=row.ignores_merges))
    text = json.loads(tokenizer.to_str())
    text |= {"pre_tokenizer": row.steps, "normalizer": row.normalizer}
    tokenizer = Tokenizer.from_str(json.dumps(text, default=dict))
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [*TEXTS, (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@pytest.fixture
def entries_of(tmp_path):
    def entries(tokenizer, pre):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        size = tokenizer.get_vocab_size() + 5
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}), encoding="utf-8")
        return {**tokenizer_entries(tmp_path), "tokenizer.ggml.pre": pre}

    return entries


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm", "tekken"])
def test_byte_level_tokenizers_give_the_same_ids(entries_of, rng, pre):
    theirs = trained(pre)
    entries = entries_of(theirs, pre)
    ours = rebuilt(entries)
    for text in texts(rng):
        ids = theirs.encode(text).ids
        assert ours.encode(text).ids == ids
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(
            ids, skip_special_tokens=False
        )
    size = len(json.loads(ours.to_str())["model"]["vocab"])
    assert size == theirs.get_vocab_size(with_added_tokens=False)


def test_pre_tokenizers_split_differently(entries_of):
    """Control: each pre-tokenizer splits these texts differently."""
    entries = entries_of(trained("llama-bpe"), "llama-bpe")
    pieces = set()
    for pre in ("llama-bpe", "qwen2", "gpt-2", "smollm", "tekken"):
        step = rebuilt({**entries, "tokenizer.ggml.pre": pre}).pre_tokenizer
        cut = [step.pre_tokenize_str(text + " 42nd-A/\n") for text in TEXTS]
        pieces.add(tuple(piece for text in cut for piece, _ in text))
    assert len(pieces) == 5


@pytest.mark.parametrize(
    ("entries", "first"),
    [
        ({"tokenizer.ggml.add_bos_token": True}, "<s>"),
        ({"tokenizer.ggml.add_bos_token": False}, "h"),
        ({"tokenizer.ggml.add_bos_token": None}, "<s>"),
        ({"tokenizer.ggml.add_bos_token": None, "tokenizer.ggml.pre": "qwen2"}, "h"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "h"),
    ],
)
def test_the_bos_token_is_added_where_it_belongs(entries_of, entries, first):
    all_entries = {**entries_of(trained("llama-bpe"), "llama-bpe"), **entries}
    known = {key: value for key, value in all_entries.items() if value is not None}
    tokenizer = rebuilt(known)
    assert tokenizer.encode("h").tokens[0] == first
    settings = json.loads(tokenizer_files(known, "m.gguf")[0]["tokenizer_config.json"])
    assert settings["add_bos_token"] == (first == "<s>")


def sentencepiece(rng, pieces=120):
    """Return a random vocabulary with scores in which every piece can be built by merging."""
    letters = [*"abcde", "▁", "é"]
    known = list(letters)
    while len(known) < pieces:
        joined = "".join(rng.choice(known, 2))
        if joined not in known and len(joined) <= 6:
            known.append(joined)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *known]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(known)]
    # As in SentencePiece: pieces in the order in which they were merged, letters last.
    merged = [*rng.permutation(np.arange(len(letters), len(known))), *range(len(letters))]
    scores = [0.0] * 259 + [0.0] * len(known)
    for rank, index in enumerate(merged):
        scores[259 + index] = -float(rank)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def merged_by_score(text, entries):
    """Tokenize like llama.cpp: merge the neighbours with the best score, leftmost first."""
    ids = {token: index for index, token in enumerate(entries["tokenizer.ggml.tokens"])}
    scores = entries["tokenizer.ggml.scores"]
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (scores[ids[parts[i] + parts[i + 1]]], -i)
            for i in range(len(parts) - 1)
            if parts[i] + parts[i + 1] in ids
        ]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    out = []
    for part in parts:
        out += [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return [1, *out]


def test_sentencepiece_merges_follow_the_scores(rng):
    entries = sentencepiece(rng)
    tokenizer = rebuilt(entries)
    for _ in range(60):
        text = "".join(rng.choice([*"abcde ", "é", "x", "你"], rng.integers(1, 40)))
        ids = merged_by_score(text, entries)
        assert tokenizer.encode(text).ids == ids
        assert tokenizer.decode(ids) == text


def test_a_vocabulary_without_a_prefix_keeps_a_text_unchanged(rng):
    entries = {**sentencepiece(rng), "tokenizer.ggml.add_space_prefix": False}
    tokenizer = rebuilt(entries)
    for text in ("abc", " abc", "a  b "):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("a").tokens == ["<s>", "a"]
    with_prefix = rebuilt({**entries, "tokenizer.ggml.add_space_prefix": True})
    assert with_prefix.encode("a").tokens != ["<s>", "a"]


def test_user_defined_tokens_stay_whole_and_are_not_special(rng):
    entries = sentencepiece(rng)
    entries["tokenizer.ggml.tokens"] = [*entries["tokenizer.ggml.tokens"], "<think>", "<|im_end|>"]
    entries["tokenizer.ggml.token_type"] = [*entries["tokenizer.ggml.token_type"], 4, 3]
    entries["tokenizer.ggml.scores"] = [*entries["tokenizer.ggml.scores"], 0.0, 0.0]
    last = len(entries["tokenizer.ggml.tokens"]) - 1
    tokenizer = rebuilt(entries)
    ids = tokenizer.encode("<think><|im_end|>").ids
    assert ids == [1, last - 1, last]
    assert tokenizer.decode(ids) == "<think>"
    assert tokenizer_files(entries, "m")[1]["eos_token_id"] == [2, last]


def test_an_embedded_tokenizer_json_is_used_unchanged():
    text = (EXAMPLE / "tokenizer.json").read_text(encoding="utf-8")
    entries = {"tokenizer.ggml.model": "gpt2", "tokenizer.huggingface.json": text}
    files, _, notes = tokenizer_files(entries, "m.gguf")
    assert files["tokenizer.json"].decode() == text
    assert notes == ()


@pytest.mark.parametrize(
    ("entries", "words", "is_there"),
    [
        ({"tokenizer.ggml.pre": "of-tomorrow"}, "'of-tomorrow' of the GGUF is unknown", False),
        ({"tokenizer.ggml.model": "rwkv"}, "kind 'rwkv' cannot be rebuilt", False),
        ({"tokenizer.ggml.pre": "default"}, "that of GPT-2 is assumed", True),
        ({"tokenizer.ggml.pre": None}, "that of GPT-2 is assumed", True),
        ({"tokenizer.ggml.tokens": [], "tokenizer.ggml.token_type": []}, "holds no token", False),
    ],
)
def test_notes_say_what_is_assumed_or_unknown(entries_of, entries, words, is_there):
    all_entries = {**entries_of(trained("gpt-2"), "gpt-2"), **entries}
    if not all_entries["tokenizer.ggml.tokens"]:
        all_entries |= {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.eos_token_id": None}
    known = {key: value for key, value in all_entries.items() if value is not None}
    files, _, notes = tokenizer_files(known, "m.gguf")
    assert any(words in note for note in notes)
    assert ("tokenizer.json" in files) == is_there


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"tokenizer.ggml.bos_token_id": 9999}, "bos_token_id.*found 9999"),
        ({"tokenizer.ggml.eos_token_id": "</s>"}, "eos_token_id"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type.*found 2"),
        ({"tokenizer.ggml.tokens": "abc"}, r"ggml\.tokens.*found str"),
        ({"tokenizer.ggml.merges": [1, 2]}, "merges"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(entries_of, entries, message):
    good = entries_of(trained("gpt-2"), "gpt-2")
    tokenizer_files(good, "m.gguf")
    with pytest.raises(SourceError, match=message):
        tokenizer_files({**good, **entries}, "m.gguf")


SPLIT = "He's 12345 (x=\u4e2d\u6587\u304b\u306a)!\n\n ab"
HAN, KANA = SPLIT[14:16], SPLIT[16:18]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("deepseek-llm", f"He|'|s| |12345| (|x|=|{HAN}{KANA}|)!|\n|\n| ab"),
        ("deepseek-v3", f"He|'s| |123|45| (|x|=|{HAN}{KANA}|)!\n\n| ab"),
        ("deepseek-coder", f"He|'|s| |1|2|3|4|5| (|x|=|{HAN}{KANA}|)!|\n|\n| ab"),
        ("falcon", f"He|'|s| |123|45| |(|x|=|{HAN}{KANA}|)!|\n\n| ab"),
        ("exaone-moe", f"He|'s| |1|2|3|4|5| (|x|={HAN}{KANA}|)!\n|\n| ab"),
        ("seed-coder", f"He|'s| |1|2|3|4|5| (|x|={HAN}{KANA}|)!|\n\n| ab"),
        ("kimi-k2", f"He's| |123|45| (|x|=|{HAN}|{KANA}|)!\n\n| ab"),
        ("exaone4", f"He|'s| 12345| (|x|=|{HAN}{KANA}|)!|\n\n| ab"),
        ("stablelm2", f"He|'s| |1|2|3|4|5| (|x|={HAN}{KANA}|)!\n\n| ab"),
    ],
)
def test_pretokenizers_split_text_as_llama_cpp_does(pre, pieces):
    """The pieces are those of rows whose ids equal llama.cpp's on 400 random texts."""
    content = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
    content["pre_tokenizer"] = PRETOKENIZERS[pre].steps
    tokenizer = Tokenizer.from_str(json.dumps(content, default=dict))
    spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(SPLIT)]
    assert [SPLIT[first:end] for first, end in spans] == pieces.split("|")


def test_byte_level_tokens_without_merges_are_no_tokenizer(tmp_path):
    """llama.cpp refuses such a file; without merges every text would be single characters."""
    for metadata, is_there in (({}, True), ({"tokenizer.ggml.merges": None}, False)):
        source = open_source(write_gguf(EXAMPLE, tmp_path / "m.gguf", metadata=metadata))
        assert (source.generated.get("tokenizer.json") is not None) == is_there
        assert any("no merges" in note for note in source.notes) != is_there


@pytest.mark.parametrize("merges", [{}, {"tokenizer.ggml.merges": []}], ids=["missing", "empty"])
@pytest.mark.parametrize(
    ("kind", "is_there"),
    [(1, False), (3, True), (4, True), (5, True)],
    ids=["normal", "control", "user-defined", "unused"],
)
def test_only_normal_tokens_of_several_bytes_need_merges(merges, kind, is_there):
    entries = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["b", "a", "ab"],
        "tokenizer.ggml.token_type": [1, 1, kind],
    }
    files, _, notes = tokenizer_files(entries | merges, "m.gguf")
    assert (
        any("no merges, without which no text has the token 'ab'" in n for n in notes) != is_there
    )
    assert ("tokenizer.json" in files) == is_there
    if is_there:
        tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
        assert tokenizer.encode("bba").ids == [0, 0, 1]


def test_tokens_that_a_file_suppresses_are_noted(tmp_path):
    path = write_gguf(
        EXAMPLE, tmp_path / "m.gguf", metadata={"tokenizer.ggml.suppress_tokens": [5, 6]}
    )
    assert open_source(path).generation_config["suppress_tokens"] == [5, 6]
    noted = "suppress_tokens [5, 6], which generation does not obey: a `logit_bias` of -100"
    assert any(noted in note for note in convert(path, tmp_path / "o", dry_run=True).notes)
    plain = convert(write_gguf(EXAMPLE, tmp_path / "p.gguf"), tmp_path / "o", dry_run=True)
    assert not any("suppress" in note for note in plain.notes)
