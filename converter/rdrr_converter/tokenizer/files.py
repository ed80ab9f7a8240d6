"""The tokenizer's files, which are copied unchanged, and the manifest's description of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rdrr_format.errors import SourceError
from rdrr_format.printing import shortened
from rdrr_format.stores import Store, write_file
from rdrr_manifests.models import Tokenizer

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import Source

TOKENIZER_JSON = "tokenizer.json"
COPIED = (
    TOKENIZER_JSON,
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""Files of a checkpoint that are copied into the package if they exist."""

MISSING = (
    "no tokenizer that can be loaded: the checkpoint has no tokenizer.json, and none can be built "
    "from its other files, so the package takes and gives token ids only; save one with "
    "transformers' AutoTokenizer(...).save_pretrained and convert again"
)


def copy_files(source: Source, store: Store) -> None:
    """Copy the files of `COPIED` into the package.

    Raises:
        SourceError: A file cannot be read.
        StoreError: The disk is full, or the store refuses a write.
    """
    for name in COPIED:
        content = source.content(name)
        if content is not None:
            write_file(store, name, content)


def describe_tokenizer(source: Source) -> tuple[Tokenizer, tuple[str, ...]]:
    """Describe the tokenizer for the manifest, with notes on what it lacks.

    Raises:
        SourceError: tokenizer.json or tokenizer_config.json is invalid.
    """
    settings = _object(source, "tokenizer_config.json") or {}
    tokenizer = _object(source, TOKENIZER_JSON)
    block = Tokenizer(
        type="bundled",
        file=None if tokenizer is None else TOKENIZER_JSON,
        vocab_size=_vocab_size(tokenizer, source.path / TOKENIZER_JSON),
        add_bos_token=_adds_bos(settings, tokenizer or {}),
        add_eos_token=_flag(settings, "add_eos_token"),
        bos_token_id=_token_id(source, "bos_token_id"),
        pad_token_id=_token_id(source, "pad_token_id"),
    )
    notes = tuple(_not_obeyed(source.generation_config))
    if tokenizer is None:
        return block, (MISSING, *notes)
    return block, (*_unknown_ends(source, tokenizer), *notes)


_CHANGES_TEXT = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "sequence_bias",
    "suppress_tokens",
)
"""Settings of a generation that change which tokens transformers chooses, whatever its options."""


def _not_obeyed(generation: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each setting of a generation that no package has."""
    for key in _CHANGES_TEXT:
        if value := generation.get(key):
            remedy = ": a `logit_bias` of -100 for each has its effect"
            yield (
                f"the checkpoint's generation settings state {key} {shortened(repr(value), 80)}, "
                f"which generation does not obey{remedy * (key == 'suppress_tokens')}"
            )


def _object(source: Source, name: str) -> dict[str, Any] | None:
    content = source.content(name)
    return None if content is None else parse_json_object(content, source.path / name)


def eos_token_ids(source: Source) -> int | tuple[int, ...] | None:
    """Return the eos token ids of generation_config.json, else those of config.json.

    Raises:
        SourceError: `eos_token_id` is neither an integer nor a list of integers.
    """
    for values, name in (
        (source.generation_config, "generation_config.json"),
        (source.config, "config.json"),
        (source.text_config, "config.json"),
    ):
        value = values.get("eos_token_id")
        if type(value) is int:
            return value
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            return tuple(value)
        if value is not None and value != []:
            raise SourceError(
                "eos_token_id cannot be used",
                where=source.path / name,
                expected="a token id or a list of them",
                found=json.dumps(value),
            )
    return None


def _unknown_ends(source: Source, tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each end-of-sequence id that no token has.

    Such an id may be a row of the embedding, whose rows are often padded to a round number.
    """
    vocab, added = tokenizer["model"]["vocab"], tokenizer.get("added_tokens")
    known = range(len(vocab)) if isinstance(vocab, list) else vocab.values()
    listed = added if isinstance(added, list) else ()
    more = (token.get("id") for token in listed if isinstance(token, dict))
    ids = {token_id for token_id in (*known, *more) if type(token_id) is int}
    ends = eos_token_ids(source)
    for end in (ends,) if isinstance(ends, int) else ends or ():
        if end not in ids:
            yield f"the end-of-sequence id {end} is no token, so generation may not stop"


def _vocab_size(tokenizer: Mapping[str, Any] | None, path: Path) -> int | None:
    """Return the vocabulary size of the tokenizer's model without added tokens."""
    if tokenizer is None:
        return None
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, (dict, list)):
        raise SourceError("the tokenizer has no vocabulary", where=path, expected="model.vocab")
    return len(vocab)


def _adds_bos(settings: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> bool | None:
    """Return `add_bos_token`, else whether the post-processor prepends a special token."""
    stated = _flag(settings, "add_bos_token")
    if stated is not None or not tokenizer:
        return stated
    processor = tokenizer.get("post_processor") or {}
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    return any(_prepends_special_token(step) for step in (steps if isinstance(steps, list) else []))


def _prepends_special_token(step: object) -> bool:
    """Return whether a step of a post-processor prepends a special token."""
    single = step.get("single") if isinstance(step, dict) else None
    first = single[0] if isinstance(single, list) and single else None
    return isinstance(first, dict) and "SpecialToken" in first


def _flag(settings: Mapping[str, Any], key: str) -> bool | None:
    value = settings.get(key)
    return value if type(value) is bool else None


def _token_id(source: Source, key: str) -> int | None:
    for values in (source.generation_config, source.config, source.text_config):
        if type(values.get(key)) is int:
            return int(values[key])
    return None


def mask_token_id(source: Source) -> int | None:
    """Return the id of the token that the tokenizer's settings name as the mask; None without one.

    Raises:
        SourceError: A file of the tokenizer is damaged.
    """
    names = ("tokenizer_config.json", "special_tokens_map.json")
    settings = (_object(source, name) or {} for name in names)
    stated = next(filter(None, (values.get("mask_token") for values in settings)), None)
    text = stated.get("content") if isinstance(stated, dict) else stated
    added = (_object(source, TOKENIZER_JSON) or {}).get("added_tokens")
    tokens = (token for token in added if isinstance(token, dict)) if added else ()
    ids = (token.get("id") for token in tokens if token.get("content") == text)
    return next((token_id for token_id in ids if type(token_id) is int), None)
