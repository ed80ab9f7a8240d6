"""Translation of a `tokenizer.json` into GGUF metadata, the inverse of `gguf.tokenizer`.

Tokens, their types, and merges or scores are translated. A pre-tokenizer can only be named. One
without a known name is included as the whole `tokenizer.json`, which llama.cpp does not read, and a
note says that llama.cpp will split text differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rdrr_format.tokenizer_settings import named_templates
from rdrr_manifests.models import Manifest
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.gguf import unigram, word_pieces
from rdrr_converter.gguf.pretokenizers import ASSUMED, PRETOKENIZERS
from rdrr_converter.gguf.tokenizer import (
    BYTE,
    CONTROL,
    MERGED_PIECES,
    NORMAL,
    PREFIX,
    TEMPLATE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    merged_token,
)
from rdrr_converter.tokenizer.files import TOKENIZER_JSON

Entries = dict[str, Any]
Parts = tuple[Entries, tuple[str, ...]]

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_WHOLE = "tokenizer.huggingface.json"
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_OF_ENCODERS = {
    "bos": ("bos_token", "cls_token"),
    "seperator": ("sep_token",),  # spelt as in the files
    "mask": ("mask_token",),
}
"""Special tokens that only encoders state, and their keys in the order of preference."""
_IRRELEVANT = ("trim_offsets",)
"""Fields of a pre-tokenizer that do not affect token ids."""


def tokenizer_metadata(package: Package, vocab_size: int, architecture: str = "") -> Parts:
    """Build the GGUF metadata of a package's tokenizer, and notes.

    Args:
        package: The package.
        vocab_size: Number of rows of the embedding; every row gets a token.
        architecture: `general.architecture`; for Gemma 4, llama.cpp reads the merges of pieces.
    """
    settings = _object(package, _CONFIG) or {}
    tokenizer = _object(package, TOKENIZER_JSON)
    if tokenizer is None:
        return {f"{PREFIX}model": "none"}, (
            "the package has no tokenizer.json, so the GGUF has no tokenizer",
        )
    model = tokenizer.get("model") or {}
    kind = _kind(tokenizer)
    if kind is None:
        whole = {f"{PREFIX}model": "none", _WHOLE: json.dumps(tokenizer)}
        return whole, (f"llama.cpp does not support this type of tokenizer ({model.get('type')})",)
    entries = _tokens(tokenizer, vocab_size, is_pieces=kind == "llama")
    more, notes = _TRANSLATIONS[kind](tokenizer, entries)
    if kind == "llama" and architecture == MERGED_PIECES:
        kind, more = MERGED_PIECES, {**more, f"{PREFIX}merges": _merges(tokenizer)}
    entries |= {f"{PREFIX}model": kind, **more, **_special(package.manifest, settings, entries)}
    entries |= _of_encoders(package, tokenizer, entries)
    index = entries.get(f"{PREFIX}eos_token_id")
    if _adds_eos(tokenizer, None if index is None else entries[f"{PREFIX}tokens"][index]):
        entries[f"{PREFIX}add_eos_token"] = True
    extra = _count_tokens_without_row(tokenizer, vocab_size)
    if extra:
        notes = (*notes, f"{extra} tokens have no row in the embedding and are left out")
    return entries | _templates(package, settings), notes


def _object(package: Package, name: str) -> dict[str, Any] | None:
    if not package.store.exists(name):
        return None
    return parse_json_object(package.store.read(name).tobytes(), f"{package.where}/{name}")


def _kind(tokenizer: Mapping[str, Any]) -> str | None:
    """Return `gpt2` for byte-level BPE, `llama` for SentencePiece-like BPE, `bert` for WordPiece.

    It is `t5` for Unigram without bytes, and None for others.
    """
    model = tokenizer.get("model") or {}
    if model.get("type") == "Unigram" and not model.get("byte_fallback"):
        return unigram.KIND
    if model.get("type") == "WordPiece":
        return word_pieces.KIND
    if model.get("type") != "BPE":
        return None
    if "ByteLevel" in json.dumps(tokenizer.get("pre_tokenizer")):
        return "gpt2"
    return "llama" if model.get("byte_fallback") else None


def _count_tokens_without_row(tokenizer: Mapping[str, Any], vocab_size: int) -> int:
    """Count the tokens whose ids have no row in the embedding."""
    added = {token["id"] for token in tokenizer.get("added_tokens") or ()}
    return sum(index >= vocab_size for index in {*_names(tokenizer["model"]), *added})


def _names(model: Mapping[str, Any]) -> dict[int, str]:
    """Return the tokens of a model by their ids; Unigram lists them with scores."""
    if model.get("type") == "Unigram":
        return {index: token for index, (token, _) in enumerate(model["vocab"])}
    return {index: token for token, index in model["vocab"].items()}


def _tokens(tokenizer: Mapping[str, Any], vocab_size: int, *, is_pieces: bool) -> Entries:
    model = tokenizer["model"]
    added = {token["id"]: token for token in tokenizer.get("added_tokens") or ()}
    names = _names(model)
    names |= {index: token["content"] for index, token in added.items()}
    kinds = {
        index: CONTROL if token.get("special") else USER_DEFINED for index, token in added.items()
    }
    if is_pieces:
        kinds |= {index: BYTE for index, name in names.items() if _BYTE_PIECE.fullmatch(name)}
        kinds |= {i: UNKNOWN for i, name in names.items() if name == model.get("unk_token")}
    return {
        # Embedding rows without a token get a placeholder that no text produces.
        f"{PREFIX}tokens": [names.get(index, f"[PAD{index}]") for index in range(vocab_size)],
        f"{PREFIX}token_type": [
            kinds.get(index, NORMAL) if index in names else UNUSED for index in range(vocab_size)
        ],
    }


def _merges(tokenizer: Mapping[str, Any]) -> list[str]:
    merges = tokenizer["model"].get("merges") or []
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _byte_level(tokenizer: Mapping[str, Any], entries: Entries) -> Parts:
    merges = _merges(tokenizer)
    fields: Entries = {f"{PREFIX}merges": merges} if merges else {}
    notes = () if merges else ("llama.cpp refuses a byte-level tokenizer without merges",)
    if not merges and merged_token(entries[f"{PREFIX}tokens"], entries[f"{PREFIX}token_type"]):
        # Without it, the file would look like those whose merges are lost.
        fields[_WHOLE] = json.dumps(tokenizer)
    ignores = bool(tokenizer["model"].get("ignore_merges"))
    cut = _relevant_fields(tokenizer.get("pre_tokenizer")), tokenizer.get("normalizer"), ignores
    for name, row in PRETOKENIZERS.items():
        same = (_relevant_fields(row.steps), row.normalizer, row.ignores_merges) == cut
        if name != ASSUMED and same:
            return {**fields, f"{PREFIX}pre": name}, notes
    fields |= {f"{PREFIX}pre": ASSUMED, _WHOLE: json.dumps(tokenizer)}
    return fields, (
        *notes,
        "this version of rdrr knows no llama.cpp name for the tokenizer's pre-tokenizer: llama.cpp "
        "will split text as GPT-2 does (rdrr reads the whole tokenizer.json in the GGUF)",
    )


def _relevant_fields(value: Any) -> Any:
    """Return a pre-tokenizer without the fields that do not affect token ids."""
    if isinstance(value, Mapping):
        return {
            key: _relevant_fields(item) for key, item in value.items() if key not in _IRRELEVANT
        }
    return [_relevant_fields(item) for item in value] if isinstance(value, list) else value


def _pieces(tokenizer: Mapping[str, Any], entries: Entries) -> Parts:
    """Build scores that rank the pieces in the order in which the merges produce them."""
    tokens: Sequence[str] = entries[f"{PREFIX}tokens"]
    ranks: dict[str, int] = {}
    merges = _merges(tokenizer)
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", "", 1), rank)
    scores = [-float(ranks.get(token, len(merges) + index)) for index, token in enumerate(tokens)]
    prefix = _adds_space(tokenizer)
    fields: Entries = {
        f"{PREFIX}scores": scores,
        f"{PREFIX}pre": ASSUMED,
        f"{PREFIX}add_space_prefix": bool(prefix),
    }
    if prefix is None:
        return fields, (
            "it is unknown whether the tokenizer adds a space before a text: none is added",
        )
    return fields, ()


def _words(tokenizer: Mapping[str, Any], entries: Entries) -> Parts:
    tokens, kinds = (entries[f"{PREFIX}{key}"] for key in ("tokens", "token_type"))
    marked = word_pieces.tokens_of(tokens, kinds)
    fields: Entries = {f"{PREFIX}tokens": marked, f"{PREFIX}pre": ASSUMED}
    if word_pieces.is_uncased(tokenizer):
        return fields, ()
    return {**fields, _WHOLE: json.dumps(tokenizer)}, (
        "llama.cpp splits text as uncased BERT does, which is not what this tokenizer does (rdrr "
        "reads the whole tokenizer.json in the GGUF)",
    )


def _unigram(tokenizer: Mapping[str, Any], entries: Entries) -> Parts:
    tokens, model = entries[f"{PREFIX}tokens"], tokenizer["model"]
    scores = [float(score) for _, score in model["vocab"]][: len(tokens)]
    kinds = list(entries[f"{PREFIX}token_type"])
    if (unknown := model.get("unk_id")) is not None:
        kinds[unknown] = UNKNOWN
    normalized = unigram.read_steps(tokenizer)
    fields: Entries = {
        f"{PREFIX}scores": scores + [unigram.UNUSED_SCORE] * (len(tokens) - len(scores)),
        f"{PREFIX}token_type": kinds,
        f"{PREFIX}pre": ASSUMED,
        f"{PREFIX}add_space_prefix": normalized.adds_prefix,
        f"{PREFIX}remove_extra_whitespaces": normalized.removes_spaces,
    }
    if normalized.charsmap:
        fields[f"{PREFIX}precompiled_charsmap"] = normalized.charsmap
    if normalized.is_whole:
        return fields, ()
    return {**fields, _WHOLE: json.dumps(tokenizer)}, (
        "llama.cpp splits text as SentencePiece does, which is not what this tokenizer does (rdrr "
        "reads the whole tokenizer.json in the GGUF)",
    )


_TRANSLATIONS = {
    "gpt2": _byte_level,
    "llama": _pieces,
    word_pieces.KIND: _words,
    unigram.KIND: _unigram,
}


def _adds_space(tokenizer: Mapping[str, Any]) -> bool | None:
    """Return whether the tokenizer adds a space before a text; None if that is unknown."""
    steps = tokenizer.get("pre_tokenizer") or {}
    if steps.get("type") == "Metaspace":
        scheme = steps.get("prepend_scheme")
        return bool(steps.get("add_prefix_space")) if scheme is None else scheme != "never"
    normalizer = tokenizer.get("normalizer") or {}
    kinds = [step.get("type") for step in normalizer.get("normalizers", [normalizer])]
    if set(kinds) <= {"Prepend", "Replace"} and "Replace" in kinds:
        return "Prepend" in kinds
    return None


def _special(manifest: Manifest, settings: Mapping[str, Any], entries: Entries) -> Entries:
    block = manifest.tokenizer
    ends = manifest.eos_token_ids
    tokens: list[str] = entries[f"{PREFIX}tokens"]
    unknown = _text(settings.get("unk_token"))
    ids: dict[str, int | None] = {
        "bos": block.bos_token_id if block else None,
        "padding": block.pad_token_id if block else None,
        "unknown": tokens.index(unknown) if unknown in tokens else None,
        **dict(zip(("eos", "eot", "eom"), ends, strict=False)),
    }
    named = {"bos": ("bos_token",)} if manifest.inference.attention.causal else _OF_ENCODERS
    for name, keys in named.items():
        texts = [text for key in keys if (text := _text(settings.get(key))) in tokens]
        if ids.get(name) is None and texts:
            ids[name] = tokens.index(texts[0])
    fields: Entries = {
        f"{PREFIX}{name}_token_id": index
        for name, index in ids.items()
        if index is not None and index < len(tokens)
    }
    for name in ("add_bos_token", "add_eos_token"):
        flag = block and getattr(block, name)
        if flag is not None:
            fields[f"{PREFIX}{name}"] = flag
    return fields


def _of_encoders(package: Package, tokenizer: Mapping[str, Any], entries: Entries) -> Entries:
    """Return the number of types of tokens, and whether special tokens are around each text."""
    if package.manifest.inference.attention.causal:
        return {}
    types = package.manifest.inference.output.token_types
    fields: Entries = {} if types is None else {f"{PREFIX}token_type_count": types}
    index = entries.get(f"{PREFIX}seperator_token_id")
    if index is not None and _adds_eos(tokenizer, entries[f"{PREFIX}tokens"][index]):
        fields |= {f"{PREFIX}add_bos_token": True, f"{PREFIX}add_sep_token": True}
        if _kind(tokenizer) != word_pieces.KIND:  # llama.cpp adds no separator after these
            fields |= {f"{PREFIX}eos_token_id": index, f"{PREFIX}add_eos_token": True}
    return fields


def _adds_eos(tokenizer: Mapping[str, Any], eos: str | None) -> bool:
    """Return whether the post-processor ends each text with the EOS token."""
    processor = tokenizer.get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        single = step.get("single") if isinstance(step, Mapping) else None
        last = single[-1] if isinstance(single, list) and single else {}
        named = step.get("sep") or [last.get("SpecialToken", {}).get("id")]
        if eos is not None and named[0] == eos:
            return True
    return False


def _text(token: Any) -> str:
    """Return the text of a special token of tokenizer_config.json, which may be an object."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _templates(package: Package, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the chat templates: of the default, and of each with a name."""
    if package.store.exists(_TEMPLATE):
        text = package.store.read(_TEMPLATE).tobytes().decode("utf-8", errors="replace")
        return {TEMPLATE: text}
    named = named_templates(settings.get("chat_template"))
    default = named.pop("default", None)
    entries: dict[str, Any] = {} if default is None else {TEMPLATE: default}
    entries |= {f"{TEMPLATE}.{name}": text for name, text in named.items()}
    return entries | ({"tokenizer.chat_templates": list(named)} if named else {})
