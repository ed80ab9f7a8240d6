"""What the files beside tokenizer.json state, made part of the files that a package has.

    added_tokens_decoder, added_tokens.json    tokens that tokenizer.json may lack
    names, extra and additional special tokens tokens that are special, whatever tokenizer.json says
    the tokenizer's class                      names of special tokens that no file states
    add_prefix_space, legacy                   a space before a text
    clean_up_tokenization_spaces               spaces that decoding removes
    chat_template.json, additional templates   templates, in tokenizer_config.json

Transformers puts these together whenever it loads a tokenizer, and so its way is followed. Files
that already agree are not changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import SourceError
from rdrr_format.tokenizer_settings import (
    SETTINGS,
    SPECIAL,
    STANDARD_NAMES,
    extra_tokens,
    merged_settings,
    named_tokens,
    token_text,
)

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.tokenizer.spaces import CLEANS_UP, cleans_up, set_spaces

TOKENIZER_JSON, ADDED = "tokenizer.json", "added_tokens.json"
TEMPLATES = "additional_chat_templates"
"""Folder with a file for each template that has a name."""

_TEMPLATE, _FILE, _LEGACY = "chat_template", "chat_template.jinja", "chat_template.json"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _defaults(bos: str | None, eos: str, unknown: str, pad: str | None = None) -> dict[str, str]:
    values = {"bos_token": bos, "eos_token": eos, "unk_token": unknown, "pad_token": pad}
    return {name: text for name, text in values.items() if text is not None}


_END = "<|endoftext|>"
_CLASS_TOKENS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "LlamaTokenizer": _defaults("<s>", "</s>", "<unk>"),
        "CodeLlamaTokenizer": _defaults("<s>", "</s>", "<unk>"),
        "GemmaTokenizer": _defaults("<bos>", "<eos>", "<unk>", "<pad>"),
        "Qwen2Tokenizer": _defaults(None, _END, _END, _END),
        "Qwen3_5Tokenizer": _defaults(None, _END, _END, _END),
        "GPT2Tokenizer": _defaults(_END, _END, _END),
        "GPTNeoXTokenizer": _defaults(_END, _END, _END, "<|padding|>"),
        "CohereTokenizer": _defaults("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<PAD>"),
        "XGLMTokenizer": _defaults("<s>", "</s>", "<unk>", "<pad>"),
    }
)
"""Tokens of transformers' classes that have names where no file states them."""

_MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "CohereTokenizer": "cohere cohere2",
        "GPT2Tokenizer": "codegen dbrx gpt2 gpt_neo gptj opt phi starcoder2",
        "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe",
        "GemmaTokenizer": "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma",
        "Qwen2Tokenizer": "qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_next",
        "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text",
        "XGLMTokenizer": "xglm",
    }
)
"""Types of models whose tokenizer has a class of these where tokenizer_config.json names none."""


def with_stated_tokens(source: Source) -> Source:
    """Return the checkpoint with the tokens and templates that its files state beside each other.

    Raises:
        SourceError: A file is damaged, or states something that cannot be obeyed.
    """
    if source.kind == "gguf" and SPECIAL not in source.generated:
        return source  # its metadata states the kind of every token, and no adapter states others
    settings = _object(source, SETTINGS)
    _check(settings, source)
    merged = merged_settings(settings, _object(source, SPECIAL))
    generated: dict[str, bytes | None] = dict(source.generated)
    tokenizer = _object(source, TOKENIZER_JSON)
    more: dict[str, Any] = _class_tokens(merged, source.config) if settings else {}
    if "model" in tokenizer:
        tokens = _Tokens(tokenizer)
        tokens.add_stated(merged, _object(source, ADDED))
        if cleans_up(tokenizer, settings):
            more[CLEANS_UP] = False  # the steps of tokenizer.json do it
        if set_spaces(tokenizer, settings, source.config) or tokens.changed:
            tokenizer |= {"added_tokens": tokens.entries()} if tokens.changed else {}
            generated[TOKENIZER_JSON] = _dump(tokenizer)
    if templates := _templates(source, settings):
        more[_TEMPLATE] = templates
        generated[_FILE] = None
    if more:
        generated[SETTINGS] = _dump(settings | more)
    return replace(source, generated=generated)


def _class_tokens(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens that the tokenizer's class names and no file."""
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if not name:
        kind = config.get("model_type")
        name = next((key for key, types in _MODEL_TYPES.items() if kind in types.split()), "")
    stated = _CLASS_TOKENS.get(str(name).removesuffix("Fast"), {})
    return {key: text for key, text in stated.items() if key not in settings}


def _templates(source: Source, settings: Mapping[str, Any]) -> Any:
    """Return the chat template, or those with names, if it is not where a package has it.

    A file for each template replaces those of the settings, but for a default that no file has.
    """
    files = {f"{TEMPLATES}/{path.name}" for path in (source.path / TEMPLATES).glob("*.jinja")}
    files |= {name for name in source.generated if name.startswith(f"{TEMPLATES}/")}
    read = {PurePosixPath(name).stem: _text(source, name) for name in sorted(files)}
    texts = {name: text for name, text in read.items() if text is not None}
    default, stated = _text(source, _FILE), settings.get(_TEMPLATE)
    if texts:
        first = stated if default is None and isinstance(stated, str) else default
        named = ({} if first is None else {"default": first}) | texts
        return [{"name": name, "template": text} for name, text in named.items()]
    return _object(source, _LEGACY).get(_TEMPLATE) if default is None and not stated else None


def _text(source: Source, name: str) -> str | None:
    content = source.content(name)
    return None if content is None else content.decode("utf-8", errors="replace")


def _check(settings: Mapping[str, Any], source: Source) -> None:
    """Refuse settings that change ids and that nothing here obeys."""
    if settings.get("split_special_tokens") is True:
        raise SourceError(
            "split_special_tokens is not supported",
            where=source.path / SETTINGS,
            expected="false, so that special tokens in a prompt are tokens",
            found="true",
        )
    for name in STANDARD_NAMES:
        value = settings.get(name)
        if value is not None and token_text(value) is None:
            raise SourceError(
                f"{name} cannot be used",
                where=source.path / SETTINGS,
                expected="a text, or an object with content",
                found=json.dumps(value)[:100],
            )


@dataclass(frozen=True)
class _Stated:
    """A token that a file states.

    Attributes:
        text: The token.
        flags: The flags of an entry of `added_tokens`.
    """

    text: str
    flags: Mapping[str, bool]


class _Tokens:
    """The added tokens of a tokenizer.json, to which those of other files are added.

    Args:
        tokenizer: Content of tokenizer.json.

    Attributes:
        changed: Whether anything was added.
    """

    def __init__(self, tokenizer: Mapping[str, Any]) -> None:
        listed = tokenizer.get("added_tokens") or []
        self._is_sound = isinstance(listed, list) and all(map(_is_entry, listed))
        # The library reports a list that is not sound.
        entries = listed if self._is_sound else ()
        self._entries = {entry["content"]: dict(entry) for entry in entries}
        model = tokenizer["model"]
        vocab = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(vocab, list):  # Unigram: pieces with scores
            pieces = (piece[0] if isinstance(piece, list) and piece else None for piece in vocab)
            vocab = {text: at for at, text in enumerate(pieces) if isinstance(text, str)}
        self._vocab: Mapping[str, Any] = vocab if isinstance(vocab, dict) else {}
        self.changed = False

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries in the order of their ids."""
        return sorted(self._entries.values(), key=lambda entry: int(entry["id"]))

    def add_stated(self, settings: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """Add the tokens of the settings and of added_tokens.json.

        Args:
            settings: What `merged_settings` returns.
            added: Content of added_tokens.json.
        """
        special = list(named_tokens(settings).values())
        decoder = settings.get("added_tokens_decoder")
        extra = extra_tokens(settings)
        if isinstance(decoder, dict):
            tokens = list(_decoder_tokens(decoder))
            for token in tokens:
                self._restate(token)
        else:
            tokens = list(_file_tokens(added, {*special, *extra}))
        for token in tokens:
            self._add(token, special=token.flags["special"] or token.text in special)
        flags = {name: name == "special" for name in _FLAGS}
        for text in special:
            self._add(_Stated(text, flags), special=True)
        for text in extra:
            # Those that tokenizer.json has keep its flags.
            if text not in self._entries:
                self._add(_Stated(text, flags), special=True)

    def _restate(self, token: _Stated) -> None:
        """Give a token that tokenizer.json has the flags of the settings, which count."""
        entry = self._entries.get(token.text)
        flags = {name: flag for name, flag in token.flags.items() if name != "special"}
        if (
            entry is not None
            and self._is_sound
            and any((entry.get(name) is True) != flag for name, flag in flags.items())
        ):
            self._entries[token.text] = {**entry, **flags}
            self.changed = True

    def _add(self, token: _Stated, *, special: bool) -> None:
        entry = self._entries.get(token.text)
        is_known = entry is not None and (entry.get("special") is True or not special)
        if is_known or not token.text or not self._is_sound:
            return
        if entry is None:
            entry = {"id": self._id(token.text), "content": token.text, **token.flags}
        self._entries[token.text] = {**entry, "special": special}
        self.changed = True

    def _id(self, text: str) -> int:
        """Return the id that the library gives a token: that of the vocabulary, or the next one."""
        known = self._vocab.get(text)
        if type(known) is int:
            return known
        used = (int(entry["id"]) for entry in self._entries.values())
        return max([len(self._vocab) - 1, *used]) + 1


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("content"), str)
        and type(entry.get("id")) is int
    )


def _decoder_tokens(decoder: Mapping[str, Any]) -> Iterator[_Stated]:
    """Yield the tokens of `added_tokens_decoder` in the order of their ids."""
    numbered = [(int(key), value) for key, value in decoder.items() if str(key).isdecimal()]
    for _, value in sorted(numbered, key=lambda item: item[0]):
        text = token_text(value)
        if text is not None and isinstance(value, Mapping):
            yield _Stated(text, {name: value.get(name) is True for name in _FLAGS})


def _file_tokens(added: Mapping[str, Any], special: set[str]) -> Iterator[_Stated]:
    """Yield the tokens of added_tokens.json in the order of their ids."""
    numbered = {text: index for text, index in added.items() if type(index) is int}
    for text in sorted(numbered, key=numbered.__getitem__):
        flags = dict.fromkeys(_FLAGS, False)
        is_special = text in special
        yield _Stated(text, flags | {"normalized": not is_special, "special": is_special})


def _object(source: Source, name: str) -> dict[str, Any]:
    content = source.content(name)
    return {} if content is None else parse_json_object(content, source.path / name)


def _dump(value: object) -> bytes:
    return json.dumps(value).encode()
