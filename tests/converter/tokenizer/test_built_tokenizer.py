"""Tokenizers built from older files encode as those that transformers makes from the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.convert import convert
from rdrr_converter.tokenizer.build import with_tokenizer
from rdrr_converter.tokenizer.sentencepiece import read_sentencepiece
from rdrr_format.errors import SourceError
from rdrr_manifests.package import open_package
from rdrr_runtime.text.tokenizer import TextCodec
from support.commands import EXAMPLE
from support.safetensor_files import llama_tensors, write_llama
from support.sentencepiece_files import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    sentencepiece_model,
)
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXTS = (
    "Hello world, it's we'LL",
    "  two leading",
    "trailing  ",
    "a  b   c",
    "",
    " ",
    "\n\n x\ty\r\n",
    "naïve café ﬁ Å ½ ²",
    "日本語 テスト",
    "😀👩\u200d👧 emoji",
    "<s>inner</s> <unk> text",
    "[X]<sep> user words wordy",
    "def f(x):\n    return x**2  # ok",
    "a\u00a0b\u200bc",
    "1234 5678.90",
    "▁meta ▁▁x",
    "\x00\x01 control",
    "<|im_start|>user\nhi<|im_end|>\n",
)
SPECIAL = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BYTES = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    folder = Path(__file__).parents[3]
    return [
        (folder / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")
    ]


def added(index: int, text: str, **flags: bool) -> dict[str, object]:
    names = ("lstrip", "normalized", "rstrip", "single_word", "special")
    return {str(index): {"content": text, **dict.fromkeys(names, False), **flags}}


def built(folder: Path, settings: dict[str, object], **files: bytes) -> Tokenizer:
    """Return the tokenizer that is built from files in a folder."""
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    source = with_tokenizer(Source(folder, "safetensors", {}, {}))
    content = source.content("tokenizer.json")
    assert content is not None, source.notes
    return Tokenizer.from_buffer(content)


def differences(ours: Tokenizer, theirs: object) -> list[object]:
    """Return the texts whose ids, or whose decoded texts, differ from those of transformers."""
    encodings: list[object] = []
    for text in TEXTS:
        wanted = theirs(text).input_ids
        if ours.encode(text).ids != wanted:
            encodings.append((text, ours.encode(text).ids, wanted))
        elif ours.decode(wanted) != theirs.decode(wanted, skip_special_tokens=True):
            encodings.append((text, ours.decode(wanted)))
    return encodings


@pytest.fixture(scope="module")
def bpe_pieces(corpus) -> list[tuple[str, float, int]]:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, show_progress=False))
    tokens = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    return [*SPECIAL, *BYTES, *((text, -float(rank), NORMAL) for text, rank in tokens)]


@pytest.mark.parametrize("prefix", [True, False], ids=["prefix", "none"])
@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "new"])
def test_a_sentencepiece_bpe_model_encodes_as_in_transformers(tmp_path, bpe_pieces, prefix, legacy):
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "legacy": legacy,
        "add_bos_token": True,
        "add_eos_token": legacy,
    }
    content = sentencepiece_model(bpe_pieces, BPE, prefix=prefix)
    ours = built(tmp_path, settings, tokenizer__model=content)
    vocab = {text: index for index, (text, _, _) in enumerate(bpe_pieces)}
    # What transformers makes of the file, for which it needs the package sentencepiece.
    stated = {key: value for key, value in settings.items() if key != "tokenizer_class"}
    theirs = LlamaTokenizer(
        vocab=vocab, merges=generate_merges(vocab), add_prefix_space=prefix, **stated
    )
    assert ours.get_vocab_size() == len(vocab)
    assert differences(ours, theirs) == []
    # The control: another order of the vocabulary gives other merges.
    reversed_pieces = [*bpe_pieces[:259], *bpe_pieces[259:][::-1]]
    other = built(tmp_path, settings, tokenizer__model=sentencepiece_model(reversed_pieces, BPE))
    assert other.encode(TEXTS[0]).tokens != ours.encode(TEXTS[0]).tokens


def test_added_tokens_of_the_settings_are_found_in_texts(tmp_path, bpe_pieces):
    count = len(bpe_pieces)
    settings = {
        "add_bos_token": False,
        "added_tokens_decoder": {
            **added(count, "<|im_start|>", special=True),
            **added(count + 1, "words"),
        },
        "pad_token": "<pad>",
        "additional_special_tokens": ["<|im_end|>"],
    }
    pieces = [*bpe_pieces[:-1], ("[X]", 0.0, USER_DEFINED)]
    content = sentencepiece_model(pieces, BPE)
    tokenizer = built(tmp_path, settings, tokenizer__model=content)
    assert tokenizer.token_to_id("<|im_start|>") == count
    assert tokenizer.token_to_id("<pad>") == count + 2
    assert tokenizer.token_to_id("<|im_end|>") == count + 3
    ids = tokenizer.encode("<|im_start|>a[X]words<|im_end|>").ids
    assert {count, count + 1, count - 1, count + 3} <= set(ids)
    assert tokenizer.decode(ids) == "a[X]words"
    special = {
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    }
    assert special == {"<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>"}


def best_segmentation(text: str, scores: dict[str, float]) -> list[str]:
    """Return the pieces with the largest sum of scores, by dynamic programming."""
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(text) + 1):
        best.append(
            max(
                (best[start][0] + scores[text[start:end]], [*best[start][1], text[start:end]])
                for start in range(end)
                if text[start:end] in scores
            )
        )
    return best[-1][1]


def test_a_unigram_model_finds_the_most_probable_pieces(tmp_path, rng):
    letters = "abcde▁"
    pieces = [(letter, -8.0, NORMAL) for letter in letters]
    for _ in range(60):
        word = "".join(rng.choice(list(letters), rng.integers(2, 5)))
        if word not in {text for text, _, _ in pieces}:
            pieces.append((word, -float(rng.uniform(2, 12)), NORMAL))
    scores = {text: score for text, score, _ in pieces}
    options = {"byte_fallback": False, "removes_spaces": True}
    content = sentencepiece_model([*SPECIAL, *pieces], UNIGRAM, **options)
    tokenizer = built(tmp_path, {"add_bos_token": False}, tokenizer__model=content)
    for _ in range(40):
        text = "".join(rng.choice(list("abcde  "), rng.integers(1, 30)))
        plain = " ".join(text.split())
        wanted = best_segmentation("▁" + plain.replace(" ", "▁"), scores) if plain else []
        found = tokenizer.encode(text).tokens
        assert sum(scores[piece] for piece in found) == pytest.approx(
            sum(scores[o] for o in wanted)
        )
        assert tokenizer.decode(tokenizer.encode(text).ids) == plain


@pytest.fixture(scope="module")
def byte_level(corpus) -> tuple[bytes, bytes]:
    """Return the contents of vocab.json and merges.txt."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    model = json.loads(trained.to_str())["model"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    return json.dumps(model["vocab"]).encode(), ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "CodeGenTokenizer", "Qwen2TokenizerFast"])
def test_vocab_and_merges_encode_as_in_transformers(tmp_path, byte_level, kind):
    from transformers import AutoTokenizer

    settings: dict[str, object] = {
        "tokenizer_class": kind,
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
        "added_tokens_decoder": {
            **added(0, "<|endoftext|>", special=True),
            **added(600, "<|im_start|>", special=True),
            **added(601, "<|im_end|>", special=True),
            **added(602, "words", normalized=True),
        },
    }
    model_type = "qwen2" if kind.startswith("Qwen2") else "gpt2"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    vocabulary, merges = byte_level
    ours = built(tmp_path, settings, vocab__json=vocabulary, merges__txt=merges)
    assert differences(ours, AutoTokenizer.from_pretrained(tmp_path)) == []


def test_a_class_whose_splitting_is_unknown_is_named(tmp_path, byte_level):
    (tmp_path / "vocab.json").write_bytes(byte_level[0])
    (tmp_path / "merges.txt").write_bytes(byte_level[1])
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "ArgonTokenizer"}', encoding="utf-8"
    )
    source = with_tokenizer(Source(tmp_path, "safetensors", {}, {}))
    assert source.content("tokenizer.json") is None
    assert "ArgonTokenizer" in source.notes[0]


@pytest.mark.parametrize(
    ("merges", "message"),
    [(b"#version: 0.2\nq z\n", "a merge makes no token"), (b"\xff\n", "not a text in UTF-8")],
)
def test_damaged_merges_are_refused(tmp_path, byte_level, merges, message):
    settings = {"tokenizer_class": "GPT2Tokenizer"}
    with pytest.raises(SourceError, match=message):
        built(tmp_path, settings, vocab__json=byte_level[0], merges__txt=merges)


def test_a_damaged_sentencepiece_model_is_refused(rng, bpe_pieces):
    content = sentencepiece_model(bpe_pieces[:300], BPE)
    model = read_sentencepiece(content, "m")
    assert [(piece.text, piece.type) for piece in model.pieces] == [
        (text, kind) for text, _, kind in bpe_pieces[:300]
    ]
    for wrong in (b"", b"rdrr", content[:-1], b"\x0b" + content, b"\xff" * 20):
        with pytest.raises(SourceError, match="not a SentencePiece model"):
            read_sentencepiece(wrong, "m")
    for _ in range(200):
        spoiled = bytearray(content)
        spoiled[rng.integers(len(spoiled))] = rng.integers(256)
        try:
            read_sentencepiece(bytes(spoiled), "m")
        except SourceError:
            continue


def test_a_package_gets_the_tokenizer_that_was_built(tmp_path, rng, bpe_pieces):
    folder = write_llama(tmp_path / "m", llama_tensors(rng))
    (folder / "tokenizer.json").unlink()
    without = convert(folder, tmp_path / "none")
    assert any("no tokenizer that can be loaded" in note for note in without.notes)
    pieces = [*bpe_pieces[:259], *((text, -1.0, NORMAL) for text in "▁ab")]
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(pieces, BPE))
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": true}', encoding="utf-8")
    result = convert(folder, tmp_path / "out")
    assert any("one was built from tokenizer.model" in note for note in result.notes)
    package = open_package(tmp_path / "out")
    codec = TextCodec(package.tokenizer_bytes())
    assert codec.decode(codec.encode("a b")) == "a b"
    assert package.manifest.tokenizer.add_bos_token is True
    # A tokenizer.json that is there is used as it is.
    (folder / "tokenizer.json").write_bytes((EXAMPLE / "tokenizer.json").read_bytes())
    (folder / "tokenizer.model").write_bytes(b"no model")
    source = Source(folder, "safetensors", {}, {})
    assert with_tokenizer(source) is source
    (folder / "tokenizer.json").unlink()
    assert "not a SentencePiece model" in with_tokenizer(source).notes[0]


@pytest.mark.parametrize(
    ("settings", "letters"),
    [
        ({}, "small"),
        ({}, "all"),
        ({"tokenizer_class": "BertTokenizer", "do_lower_case": False}, "all"),
        ({"tokenizer_class": "DistilBertTokenizer", "tokenize_chinese_chars": False}, "small"),
        ({"tokenizer_class": "MPNetTokenizer"}, "small"),
    ],
)
def test_a_wordpiece_vocabulary_alone_makes_a_tokenizer(settings, letters, corpus, tmp_path):
    import transformers

    is_mpnet = "MPNet" in settings.get("tokenizer_class", "")
    names = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"] if is_mpnet else BERT_TOKENS
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(
        [text.lower() if letters == "small" else text for text in corpus], trainer
    )
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    lines = "".join(f"{word}\n" for word, _ in words)
    (tmp_path / "vocab.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    source = with_tokenizer(Source(tmp_path, "safetensors", {}, {}))
    assert any("built from vocab.txt" in note for note in source.notes)
    codec = TextCodec(source.content("tokenizer.json"))
    kind = getattr(transformers, settings.get("tokenizer_class", "BertTokenizer"))
    options = {"do_lower_case": letters == "small", **settings}
    theirs = kind(str(tmp_path / "vocab.txt"), **options)
    for text in TEXTS:
        assert codec.encode(text) == theirs(text)["input_ids"], text
        (pair,) = codec.encode_texts([(text, "second text")])
        wanted = theirs(text, "second text", return_token_type_ids=True)
        assert pair.ids == wanted["input_ids"]
        if not is_mpnet:  # its model has no types
            assert pair.types == wanted["token_type_ids"]


def test_a_wordpiece_vocabulary_without_its_unknown_token_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[CLS]\n[SEP]\na\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"expected \[UNK\]"):
        with_tokenizer(Source(tmp_path, "safetensors", {}, {}))
    (tmp_path / "vocab.txt").write_text("[CLS]\n[SEP]\n[UNK]\na\n", encoding="utf-8")
    assert with_tokenizer(Source(tmp_path, "safetensors", {}, {})).content("tokenizer.json")
