"""A `tokenizer.json` for checkpoints without one, built from the files of older tokenizers.

    tokenizer.model              SentencePiece, unigram or BPE
    vocab.json and merges.txt    byte-level BPE of the classes of `_BYTE_LEVEL`
    vocab.txt                    WordPiece, of BERT and its relatives

For SentencePiece the model itself says how text is split; for the others the class named in
tokenizer_config.json does. If it is not known, nothing is built: another way to split text gives
wrong ids without any message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.gguf.pretokenizers import PRETOKENIZERS, Pretokenizer
from rdrr_converter.tokenizer.sentencepiece import (
    BPE,
    CONTROL,
    UNIGRAM,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
)
from rdrr_converter.tokenizer.steps import byte_level_steps, sentencepiece_steps, wordpiece_steps

TOKENIZER_JSON, SETTINGS = "tokenizer.json", "tokenizer_config.json"
SENTENCEPIECE, VOCABULARY, MERGES = "tokenizer.model", "vocab.json", "merges.txt"
WORDPIECE = "vocab.txt"

_BYTE_LEVEL: Mapping[str, Pretokenizer] = MappingProxyType(
    {
        "GPT2Tokenizer": PRETOKENIZERS["gpt-2"],
        "CodeGenTokenizer": PRETOKENIZERS["gpt-2"],
        "Qwen2Tokenizer": PRETOKENIZERS["qwen2"],
    }
)
"""How classes with vocab.json and merges.txt split text; `Fast` at the end of a name is ignored."""

_OF_BERT: Mapping[str, str] = MappingProxyType(
    {
        name: f"[{name.removesuffix('_token').upper()}]"
        for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    }
)
_OF_MPNET: Mapping[str, str] = MappingProxyType(
    {
        "pad_token": "<pad>",
        "unk_token": "[UNK]",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "mask_token": "<mask>",
    }
)
"""The special tokens of WordPiece vocabularies, where the settings state no others."""

_SPECIAL = (
    "unk_token",
    "bos_token",
    "eos_token",
    "pad_token",
    "mask_token",
)
Added = dict[int, dict[str, Any]]
"""Entries of `added_tokens` by id."""


def with_tokenizer(source: Source) -> Source:
    """Return the checkpoint with a generated tokenizer.json, if it has none and one can be built.

    Raises:
        SourceError: A file of the tokenizer is damaged.
    """
    if source.content(TOKENIZER_JSON) is not None:
        return source
    built = _build(source)
    if isinstance(built, str):
        return source if not built else replace(source, notes=(*source.notes, built))
    content = json.dumps(built.tokenizer, ensure_ascii=False).encode()
    note = f"there is no {TOKENIZER_JSON}: one was built from {built.files}"
    return replace(
        source,
        generated={**source.generated, TOKENIZER_JSON: content},
        notes=(*source.notes, note),
    )


@dataclass(frozen=True)
class _Built:
    """A tokenizer.json, and the names of the files that it was built from."""

    tokenizer: dict[str, Any]
    files: str


def _build(source: Source) -> _Built | str:
    """Build the tokenizer; return a note that says why not, empty if there are no files for it."""
    settings = _object(source, SETTINGS)
    content = source.content(SENTENCEPIECE)
    if content is not None:
        try:
            model = read_sentencepiece(content, source.path / SENTENCEPIECE)
        except SourceError as error:  # other tokenizers have files of this name too
            return f"no tokenizer was built from {SENTENCEPIECE}: {error.message} ({error.found})"
        if model.type not in (UNIGRAM, BPE):
            return f"{SENTENCEPIECE} is neither a unigram model nor BPE, so nothing was built of it"
        return _Built(_Files(source, settings).of_sentencepiece(model), SENTENCEPIECE)
    vocabulary, merges = source.content(VOCABULARY), source.content(MERGES)
    if vocabulary is None or merges is None:
        words = source.content(WORDPIECE)
        if words is None:
            return ""
        return _Built(_Files(source, settings).of_wordpiece(words), WORDPIECE)
    name = str(settings.get("tokenizer_class", "")).removesuffix("Fast")
    if name not in _BYTE_LEVEL:
        known = ", ".join(_BYTE_LEVEL)
        return (
            f"{VOCABULARY} and {MERGES} cannot be used without knowing how text is split: "
            f"tokenizer_class in {SETTINGS} is {name or 'absent'}, and known are {known}"
        )
    tokenizer = _Files(source, settings).of_byte_level(
        parse_json_object(vocabulary, source.path / VOCABULARY), merges, _BYTE_LEVEL[name]
    )
    return _Built(tokenizer, f"{VOCABULARY} and {MERGES}")


def _object(source: Source, name: str) -> dict[str, Any]:
    content = source.content(name)
    return {} if content is None else parse_json_object(content, source.path / name)


@dataclass(frozen=True)
class _Files:
    """The files beside a vocabulary, and what they make of it."""

    source: Source
    settings: Mapping[str, Any]

    def of_sentencepiece(self, model: SentencePieceModel) -> dict[str, Any]:
        """Return the tokenizer.json of a SentencePiece model."""
        tokens = {piece.text: index for index, piece in enumerate(model.pieces)}
        names = {name: model.pieces[index].text for name, index in model.special_ids.items()}
        added = self._added(tokens, names)
        for index, piece in enumerate(model.pieces):
            if piece.type in (CONTROL, USER_DEFINED):
                is_special = piece.type == CONTROL
                added.setdefault(index, _added_token(index, piece.text, special=is_special))
        steps = sentencepiece_steps(model, self.settings)
        # Tokens of SentencePiece models begin sequences unless the settings say otherwise.
        special = self._special(names) if "bos_token" in model.special_ids else self._special({})
        return _tokenizer(steps, added, self._processor(special, added, tokens, default=True))

    def of_byte_level(
        self, vocabulary: Mapping[str, Any], merges: bytes, how: Pretokenizer
    ) -> dict[str, Any]:
        """Return the tokenizer.json of a byte-level vocabulary and its merges."""
        steps = byte_level_steps(vocabulary, merges, how, self.source.path)
        tokens: Mapping[str, int] = steps["model"]["vocab"]
        added = self._added(tokens, {})
        special = self._special({})
        return _tokenizer(steps, added, self._processor(special, added, tokens, default=False))

    def of_wordpiece(self, content: bytes) -> dict[str, Any]:
        """Return the tokenizer.json of a WordPiece vocabulary.

        Raises:
            SourceError: The file is damaged.
        """
        is_mpnet = str(self.settings.get("tokenizer_class", "")).startswith("MPNet")
        usual = _OF_MPNET if is_mpnet else _OF_BERT
        special = self._special(usual)
        where = self.source.path / WORDPIECE
        steps = wordpiece_steps(content, special["unk_token"], self.settings, where)
        tokens: Mapping[str, int] = steps["model"]["vocab"]
        # A vocabulary need not have all of the usual ones.
        present = {name: text for name, text in usual.items() if text in tokens}
        added = self._added(tokens, present)
        first, last = special["cls_token"], special["sep_token"]
        if first not in tokens or last not in tokens:
            return _tokenizer(steps, added, None)
        pair = [first, "$A", last, *([last] if is_mpnet else []), "$B:1", f"{last}:1"]
        return _tokenizer(steps, added, _around([first, "$A", last], pair, tokens))

    def _special(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return the special tokens by name: those of the settings, else those of the model."""
        stated = {**_object(self.source, "special_tokens_map.json"), **self.settings}
        special = dict(names)
        for name in dict.fromkeys((*_SPECIAL, *names)):
            value = stated.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                special[name] = text
        return special

    def _added(self, tokens: Mapping[str, int], names: Mapping[str, str]) -> Added:
        """Return the added tokens that the files state; those without an id get the next ones."""
        added: Added = {}
        decoder = self.settings.get("added_tokens_decoder")
        for key, entry in (decoder if isinstance(decoder, dict) else {}).items():
            if isinstance(entry, dict) and str(key).isdigit():
                added[int(key)] = _added_token(int(key), str(entry.get("content", "")), **entry)
        for text, index in _object(self.source, "added_tokens.json").items():
            if type(index) is int:
                added.setdefault(index, _added_token(index, text, special=False))
        known = {entry["content"]: index for index, entry in added.items()}
        special = tuple(self._special(names).values())
        more = self.settings.get("additional_special_tokens")
        others = [
            token.get("content") if isinstance(token, dict) else token for token in more or ()
        ]
        for text in (*special, *(token for token in others if isinstance(token, str))):
            index = known.get(text, tokens.get(text))
            if index is None:
                index = max((*tokens.values(), *added), default=-1) + 1
            if index not in added:
                added[index] = _added_token(index, text, special=True)
                known[text] = index
        return added

    def _processor(
        self, special: Mapping[str, str], added: Added, tokens: Mapping[str, int], *, default: bool
    ) -> dict[str, Any] | None:
        """Return the post-processor that adds the tokens of `add_bos_token` and `add_eos_token`."""
        ids = {**tokens, **{entry["content"]: index for index, entry in added.items()}}
        bos = special.get("bos_token") if self._flag("add_bos_token", default) else None
        eos = special.get("eos_token") if self._flag("add_eos_token", False) else None
        used = {text: ids[text] for text in (bos, eos) if text is not None and text in ids}
        if not used:
            return None
        parts = {
            name: [
                *([{"SpecialToken": {"id": bos, "type_id": kind}}] if bos in used else []),
                {"Sequence": {"id": name, "type_id": kind}},
                *([{"SpecialToken": {"id": eos, "type_id": kind}}] if eos in used else []),
            ]
            for kind, name in enumerate("AB")
        }
        return {
            "type": "TemplateProcessing",
            "single": parts["A"],
            "pair": [*parts["A"], *parts["B"]],
            "special_tokens": {
                text: {"id": text, "ids": [index], "tokens": [text]} for text, index in used.items()
            },
        }

    def _flag(self, name: str, default: bool) -> bool:
        value = self.settings.get(name, default)
        return value if isinstance(value, bool) else default


def _around(
    single: Sequence[str], pair: Sequence[str], tokens: Mapping[str, int]
) -> dict[str, Any]:
    """Return the post-processor that puts special tokens around a text, and around a pair.

    Args:
        single: The tokens and `$A`.
        pair: The tokens, `$A` and `$B`, each with `:1` behind it if it has type 1.
        tokens: Ids of tokens.
    """

    def part(entry: str) -> dict[str, Any]:
        text, kind = entry.removesuffix(":1"), int(entry.endswith(":1"))
        name = "Sequence" if text.startswith("$") else "SpecialToken"
        return {name: {"id": text.removeprefix("$"), "type_id": kind}}

    used = dict.fromkeys(entry for entry in single if not entry.startswith("$"))
    return {
        "type": "TemplateProcessing",
        "single": [part(entry) for entry in single],
        "pair": [part(entry) for entry in pair],
        "special_tokens": {
            text: {"id": text, "ids": [tokens[text]], "tokens": [text]} for text in used
        },
    }


def _added_token(index: int, text: str, **flags: Any) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    values = {name: flags[name] is True if name in flags else False for name in names}
    return {"id": index, "content": text, **values}


def _tokenizer(
    steps: Mapping[str, Any], added: Added, processor: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _in_order(added.values()),
        **steps,
        "post_processor": processor,
    }


def _in_order(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: int(entry["id"]))
