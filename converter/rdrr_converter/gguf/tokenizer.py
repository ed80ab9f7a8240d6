"""Rebuild the tokenizer files of a Hugging Face directory from the vocabulary of a GGUF.

A GGUF stores the tokens, their types, and either merges or scores. Of the pre-tokenizer it stores
only the name. If that name is unknown no tokenizer is written, and a note says so: with another
pre-tokenizer the ids would be wrong without anybody noticing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from rdrr_format.errors import SourceError

from rdrr_converter.gguf import unigram, word_pieces
from rdrr_converter.gguf.end_tokens import STATED, end_tokens
from rdrr_converter.gguf.post_processor import Around, template
from rdrr_converter.gguf.pretokenizers import (
    ASSUMED,
    PRETOKENIZERS,
    Pretokenizer,
    sentencepiece_parts,
)

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types, as numbered in `tokenizer.ggml.token_type`."""

TEMPLATE = "tokenizer.chat_template"
RANK_TEMPLATE = f"{TEMPLATE}.rerank"

MERGED_PIECES = "gemma4"
"""Kind of a vocabulary of SentencePiece whose merges are stated, as those of Gemma 4."""

_MERGED_BY_ID = ("gemma3", "gemma-embedding")
"""Architectures whose scores do not give the order of merges; the ids give it."""

_ONE_SEPARATOR = ("modern-bert",)
"""Encoders with one separator between texts although their tokens are not those of WordPiece."""

_SPECIAL = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}
_OF_ENCODERS = {"seperator": "sep_token", "mask": "mask_token"}  # spelt as in the files


def tokenizer_files(
    metadata: Mapping[str, Any], where: object
) -> tuple[dict[str, bytes], dict[str, Any], tuple[str, ...]]:
    """Rebuild the tokenizer files of a GGUF.

    Returns:
        Contents by file name, the generation configuration (which is one of the files), and notes.

    Raises:
        SourceError: The vocabulary contradicts itself.
    """
    vocabulary = _Vocabulary(metadata, where)
    generation = vocabulary.generation_config()
    files = {
        "tokenizer_config.json": vocabulary.settings(),
        "generation_config.json": generation,
    }
    tokenizer, notes = vocabulary.tokenizer()
    contents = {name: _dump(value) for name, value in files.items()}
    if isinstance(tokenizer, str):
        contents["tokenizer.json"] = tokenizer.encode()
    elif tokenizer is not None:
        contents["tokenizer.json"] = _dump(tokenizer)
    return contents, generation, notes


def merged_token(tokens: Sequence[str], types: Sequence[int]) -> str | None:
    """Return a byte-level token that only merges give, or None where all are single bytes."""
    pairs = zip(tokens, types, strict=True)
    return next((token for token, kind in pairs if kind == NORMAL and len(token) > 1), None)


def _dump(value: object) -> bytes:
    # Without an indent json uses its C encoder, three times as fast on large vocabularies.
    return json.dumps(value, ensure_ascii=False).encode()


class _Vocabulary:
    """The tokenizer metadata of a GGUF."""

    def __init__(self, metadata: Mapping[str, Any], where: object) -> None:
        self._metadata, self._where = metadata, where
        self._model = metadata.get(f"{PREFIX}model")
        self._tokens: list[str] = self._list("tokens", str)
        self._types: list[int] = list(self._list("token_type", int))
        # Decoders may state such tokens too, but nothing reads them there.
        name = metadata.get("general.architecture")
        is_causal = metadata.get(f"{name}.attention.causal") is not False
        self._pools = not is_causal or metadata.get(f"{name}.pooling_type") not in (None, 0)
        self._special = _SPECIAL if is_causal else {**_SPECIAL, **_OF_ENCODERS}
        self._ids = {name: self._id(f"{name}_token_id") for name in self._special}
        if self._model == word_pieces.KIND:
            self._ids = self._ids_of_words()
        if not self._types:
            known = {index for index in self._ids.values() if index is not None}
            self._types = [CONTROL if i in known else NORMAL for i in range(len(self._tokens))]
        if len(self._types) != len(self._tokens):
            raise self._fault("token_type", f"{len(self._tokens)} numbers", len(self._types))
        self._ends = end_tokens(
            self._tokens, {name: self._id(f"{name}_token_id") for name in STATED}
        )
        for index in self._ends:  # llama.cpp also overrides the type
            self._types[index] = CONTROL
        self._pre = PRETOKENIZERS.get(str(metadata.get(f"{PREFIX}pre", ASSUMED)))

    def _list(self, key: str, kind: type) -> list[Any]:
        values = self._metadata.get(f"{PREFIX}{key}", [])
        if not isinstance(values, list) or (values and not isinstance(values[0], kind)):
            raise self._fault(key, f"a list of {kind.__name__}", type(values).__name__)
        return values

    def _id(self, key: str) -> int | None:
        value = self._metadata.get(f"{PREFIX}{key}")
        if value is None or (type(value) is int and value == 2**32 - 1):
            return None  # -1 as an unsigned integer stands for no token
        if type(value) is not int or not 0 <= value < max(1, len(self._tokens)):
            raise self._fault(key, f"an id below {len(self._tokens)}", value)
        return value if self._tokens else None

    def _ids_of_words(self) -> dict[str, int | None]:
        """Return the special tokens of WordPiece; files name `[CLS]` in several ways."""
        stated = {**self._ids, "bos": self._ids["bos"] or self._id("cls_token_id")}
        assumed = word_pieces.ASSUMED_IDS.items()
        usual = {name: index for name, index in assumed if index < len(self._tokens)}
        return {name: usual.get(name) if index is None else index for name, index in stated.items()}

    def _fault(self, key: str, expected: str, found: object) -> SourceError:
        return SourceError(
            "impossible tokenizer metadata",
            where=f"{self._where}, {PREFIX}{key}",
            expected=expected,
            found=found,
        )

    def _flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"{PREFIX}{key}", default)
        return value if type(value) is bool else default

    @property
    def _adds_bos(self) -> bool:
        default = self._model in ("llama", word_pieces.KIND) or (
            self._pre is not None and self._pre.adds_bos
        )
        return self._flag("add_bos_token", default) and self._ids["bos"] is not None

    @property
    def _last(self) -> int | None:
        """The token after each text: that between texts if there is such a token, or EOS."""
        is_separated = self._flag("add_sep_token", self._model == word_pieces.KIND)
        if is_separated and self._ids.get("seperator") is not None:
            return self._ids["seperator"]
        return self._ids["eos"] if self._adds_eos else None

    @property
    def _adds_eos(self) -> bool:
        """Whether each text ends with the EOS token, which only embedding models are asked for.

        A prompt that is to be continued must not end with it, whatever the file states.
        """
        return self._pools and self._flag("add_eos_token", self._model == unigram.KIND)

    def settings(self) -> dict[str, Any]:
        """Return the content of `tokenizer_config.json`."""
        special = {
            ours: self._tokens[index]
            for name, ours in self._special.items()
            if (index := self._ids[name]) is not None
        }
        settings = {
            "add_bos_token": self._adds_bos,
            **special,
            "clean_up_tokenization_spaces": False,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        if f"{PREFIX}add_eos_token" in self._metadata:
            settings["add_eos_token"] = self._flag("add_eos_token", False)
        if templates := self._templates():
            settings["chat_template"] = templates
        return settings

    def _templates(self) -> str | list[dict[str, str]] | None:
        """Return the chat template, or all of them with names if there are several."""
        default = self._metadata.get(TEMPLATE)
        texts = {"default": default} | {
            key.removeprefix(f"{TEMPLATE}."): value
            for key, value in self._metadata.items()
            # That of a ranking model is read where its head is.
            if key.startswith(f"{TEMPLATE}.") and key != RANK_TEMPLATE
        }
        named = {name: text for name, text in texts.items() if isinstance(text, str)}
        if set(named) <= {"default"}:
            return named.get("default")
        return [{"name": name, "template": text} for name, text in named.items()]

    def generation_config(self) -> dict[str, Any]:
        """Return the content of `generation_config.json`, with all end-of-text ids."""
        known = self._ends
        values = {
            "bos_token_id": self._ids["bos"],
            "eos_token_id": known[0] if len(known) == 1 else known or None,
            "pad_token_id": self._ids["padding"],
            "suppress_tokens": self._list("suppress_tokens", int) or None,
        }
        return {key: value for key, value in values.items() if value is not None}

    def tokenizer(self) -> tuple[dict[str, Any] | str | None, tuple[str, ...]]:
        """Return the content of `tokenizer.json` or None, and notes on what is assumed."""
        whole = self._metadata.get("tokenizer.huggingface.json")
        if isinstance(whole, str):
            return whole, ()
        if not self._tokens:
            return None, ("the GGUF holds no tokenizer",)
        if self._model == "llama":
            return self._sentencepiece(self._implied_merges(), adds_space=True), ()
        if self._model == word_pieces.KIND:
            note = "the GGUF does not say whether its tokenizer is uncased: it is, as in llama.cpp"
            return self._words(), (note,)
        if self._model == unigram.KIND:
            return self._unigram(), ()
        if self._model == MERGED_PIECES:
            return self._sentencepiece(self._merges(), adds_space=False), ()
        if self._model != "gpt2":
            return None, (f"tokenizers of the kind {self._model!r} cannot be rebuilt from a GGUF",)
        name = self._metadata.get(f"{PREFIX}pre")
        if self._pre is None:
            return None, (f"the pre-tokenizer {name!r} of the GGUF is unknown",)
        never = None if self._list("merges", str) else merged_token(self._tokens, self._types)
        if never is not None:
            return None, (f"the GGUF has no merges, without which no text has the token {never!r}",)
        if name in (None, ASSUMED):
            note = "the GGUF does not name its pre-tokenizer: that of GPT-2 is assumed"
            return self._byte_level(self._pre), (note,)
        return self._byte_level(self._pre), ()

    def _byte_level(self, pre: Pretokenizer) -> dict[str, Any]:
        merges = self._merges()
        model = {"ignore_merges": pre.ignores_merges, "byte_fallback": False, "unk_token": None}
        return self._tokenizer_json(
            model,
            merges,
            normalizer=pre.normalizer,
            pre_tokenizer=pre.steps,
            decoder={
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
        )

    def _file(self, model: Mapping[str, Any], **steps: Any) -> dict[str, Any]:
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added_tokens(),
            **steps,
            "post_processor": template(self._tokens, self._around()),
            "model": model,
        }

    def _words(self) -> dict[str, Any]:
        unknown = self._ids["unknown"]
        name = "[UNK]" if unknown is None else self._tokens[unknown]
        model = word_pieces.model_of(self._tokens, self._types, name)
        return self._file(model, **word_pieces.UNCASED)

    def _unigram(self) -> dict[str, Any]:
        scores, table = self._list("scores", float), self._list("precompiled_charsmap", int)
        if len(scores) != len(self._tokens) or not all(map(isfinite, scores)):
            raise self._fault("scores", f"{len(self._tokens)} finite numbers", len(scores))
        if not all(0 <= byte < 256 for byte in table):
            raise self._fault("precompiled_charsmap", "bytes", "other numbers")
        normalizer, decoder = sentencepiece_parts(
            prefix=self._flag("add_space_prefix", True),
            charsmap=bytes(table),
            removes_spaces=self._flag("remove_extra_whitespaces", False),
        )
        unknown = self._unknown()
        unknown = unigram.UNKNOWN_ID if unknown is None else unknown
        if unknown >= len(self._tokens):
            raise self._fault("tokens", f"the unknown token, {unknown}", len(self._tokens))
        end = max(self._vocab_size(), unknown + 1)
        model = unigram.model_of(self._tokens[:end], scores[:end], self._types[:end], unknown)
        return self._file(model, normalizer=normalizer, pre_tokenizer=None, decoder=decoder)

    def _unknown(self) -> int | None:
        """Return the id of the unknown token, which its type may state."""
        unknown = self._ids["unknown"]
        if unknown is None and UNKNOWN in self._types:
            return self._types.index(UNKNOWN)
        return unknown

    def _merges(self) -> list[list[str]]:
        return [merge.split(" ", 1) for merge in self._list("merges", str)]

    def _sentencepiece(self, merges: list[list[str]], *, adds_space: bool) -> dict[str, Any]:
        unknown = self._unknown()
        model = {
            "ignore_merges": False,
            "byte_fallback": BYTE in self._types,
            "fuse_unk": True,
            "unk_token": None if unknown is None else self._tokens[unknown],
        }
        normalizer, decoder = sentencepiece_parts(prefix=self._flag("add_space_prefix", adds_space))
        return self._tokenizer_json(
            model,
            merges,
            normalizer=normalizer,
            pre_tokenizer=None,
            decoder=decoder,
        )

    def _implied_merges(self) -> list[list[str]]:
        """Return the merges that scores imply: pairs that make a third token, best score first."""
        pieces = {
            token: index
            for index, (token, kind) in enumerate(zip(self._tokens, self._types, strict=True))
            if kind == NORMAL
        }
        order: Sequence[float] = self._list("scores", float)
        by_id = self._metadata.get("general.architecture") in _MERGED_BY_ID
        if by_id or len(order) != len(self._tokens):
            order = [-float(index) for index in range(len(self._tokens))]
        merges: list[list[str]] = []
        for piece, _ in sorted(pieces.items(), key=lambda item: (-order[item[1]], item[1])):
            halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
            known = [pair for pair in halves if pair[0] in pieces and pair[1] in pieces]
            known.sort(key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))
            merges += [list(pair) for pair in known]
        return merges

    def _tokenizer_json(
        self, model: Mapping[str, Any], merges: list[list[str]], **steps: Any
    ) -> dict[str, Any]:
        vocab_size = self._vocab_size()
        parts = {
            "type": "BPE",
            "dropout": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            **model,
            "vocab": {token: index for index, token in enumerate(self._tokens[:vocab_size])},
            "merges": merges,
        }
        return self._file(parts, **steps)

    def _vocab_size(self) -> int:
        """Return the size of the vocabulary without the added and unused tokens at its end."""
        end = len(self._tokens)
        while end and self._types[end - 1] == UNUSED:
            end -= 1
        while end and self._types[end - 1] in (CONTROL, USER_DEFINED):
            end -= 1
        return end

    def _added_tokens(self) -> list[dict[str, Any]]:
        return [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind == CONTROL,
            }
            for index, (token, kind) in enumerate(zip(self._tokens, self._types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        ]

    def _around(self) -> Around:
        """Return the special tokens around texts.

        A separator stands between texts, so that only the first begins with a token. RoBERTa and
        its relatives have two of them, and no types.
        """
        before, after = self._ids["bos"] if self._adds_bos else None, self._last
        if after is None or after != self._ids.get("seperator"):
            return Around(before, after, second=before)
        name = self._metadata.get("general.architecture")
        if self._model == word_pieces.KIND or name in _ONE_SEPARATOR:
            return Around(before, after, second=None)
        return Around(before, after, second=after, has_types=False)
