"""A `tokenizer.json` as the metadata of a GGUF: the way back of `sources.gguf_tokenizer`.

Tokens, their kinds, and merges or scores are taken over; how text is cut before merging can only
be named. A way to cut that has no name here goes along as the whole `tokenizer.json`, which
llama.cpp does not read, and a note says that it will cut otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rdrr_manifests.models import Manifest
from rdrr_manifests.package import Package

from rdrr_converter.sources.base import parse_json_object
from rdrr_converter.sources.gguf_pretokenizers import ASSUMED, PRETOKENIZERS
from rdrr_converter.sources.gguf_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    PREFIX,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)
from rdrr_converter.tokenizer import TOKENIZER_JSON

Entries = dict[str, Any]
Parts = tuple[Entries, tuple[str, ...]]

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_WHOLE = "tokenizer.huggingface.json"
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_IRRELEVANT = ("trim_offsets",)
"""Fields of a pre-tokenizer that change no id."""


def tokenizer_metadata(package: Package, vocab_size: int) -> Parts:
    """Metadata of a package's tokenizer, and notes.

    Args:
        package: The package.
        vocab_size: Rows of the embedding, each of which gets a token.
    """
    settings = _object(package, _CONFIG) or {}
    tokenizer = _object(package, TOKENIZER_JSON)
    if tokenizer is None:
        return {f"{PREFIX}model": "none"}, ("the package has no tokenizer.json: neither the GGUF",)
    model = tokenizer.get("model") or {}
    kind = _kind(tokenizer)
    if kind is None:
        whole = {f"{PREFIX}model": "none", _WHOLE: json.dumps(tokenizer)}
        return whole, (f"llama.cpp has no tokenizer of this kind ({model.get('type')})",)
    entries = _tokens(tokenizer, vocab_size, is_pieces=kind == "llama")
    more, notes = (_pieces if kind == "llama" else _byte_level)(tokenizer, entries)
    entries |= {f"{PREFIX}model": kind, **more, **_special(package.manifest, settings, entries)}
    extra = _count_tokens_without_row(tokenizer, vocab_size)
    if extra:
        notes = (*notes, f"{extra} tokens have no row in the embedding and are left out")
    template = _template(package, settings)
    if template is not None:
        entries["tokenizer.chat_template"] = template
    return entries, notes


def _object(package: Package, name: str) -> dict[str, Any] | None:
    if not package.store.exists(name):
        return None
    return parse_json_object(package.store.read(name).tobytes(), f"{package.where}/{name}")


def _kind(tokenizer: Mapping[str, Any]) -> str | None:
    """`gpt2` for byte-level BPE, `llama` for pieces of sentencepiece, None for others."""
    model = tokenizer.get("model") or {}
    if model.get("type") != "BPE":
        return None
    if "ByteLevel" in json.dumps(tokenizer.get("pre_tokenizer")):
        return "gpt2"
    return "llama" if model.get("byte_fallback") else None


def _count_tokens_without_row(tokenizer: Mapping[str, Any], vocab_size: int) -> int:
    """Tokens whose ids are above the rows of the embedding."""
    added = {token["id"] for token in tokenizer.get("added_tokens") or ()}
    return sum(index >= vocab_size for index in {*tokenizer["model"]["vocab"].values(), *added})


def _tokens(tokenizer: Mapping[str, Any], vocab_size: int, *, is_pieces: bool) -> Entries:
    model = tokenizer["model"]
    added = {token["id"]: token for token in tokenizer.get("added_tokens") or ()}
    names = {index: token for token, index in model["vocab"].items()}
    names |= {index: token["content"] for index, token in added.items()}
    kinds = {
        index: CONTROL if token.get("special") else USER_DEFINED for index, token in added.items()
    }
    if is_pieces:
        kinds |= {index: BYTE for index, name in names.items() if _BYTE_PIECE.fullmatch(name)}
        kinds |= {i: UNKNOWN for i, name in names.items() if name == model.get("unk_token")}
    return {
        # Rows of the embedding without a token get one that no text gives.
        f"{PREFIX}tokens": [names.get(index, f"[PAD{index}]") for index in range(vocab_size)],
        f"{PREFIX}token_type": [
            kinds.get(index, NORMAL) if index in names else UNUSED for index in range(vocab_size)
        ],
    }


def _merges(tokenizer: Mapping[str, Any]) -> list[str]:
    merges = tokenizer["model"].get("merges") or []
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _byte_level(tokenizer: Mapping[str, Any], entries: Entries) -> Parts:
    del entries
    merges = _merges(tokenizer)
    found: Entries = {f"{PREFIX}merges": merges} if merges else {}
    notes = () if merges else ("llama.cpp refuses a byte-level tokenizer without merges",)
    ignores = bool(tokenizer["model"].get("ignore_merges"))
    cut = _relevant_fields(tokenizer.get("pre_tokenizer")), tokenizer.get("normalizer"), ignores
    for name, row in PRETOKENIZERS.items():
        same = (_relevant_fields(row.steps), row.normalizer, row.ignores_merges) == cut
        if name != ASSUMED and same:
            return {**found, f"{PREFIX}pre": name}, notes
    found |= {f"{PREFIX}pre": ASSUMED, _WHOLE: json.dumps(tokenizer)}
    return found, (
        *notes,
        "how the tokenizer cuts text has no name in llama.cpp that is known here: it will cut as "
        "GPT-2 does (rdrr reads the whole tokenizer.json, which the GGUF carries)",
    )


def _relevant_fields(value: Any) -> Any:
    """A pre-tokenizer without what changes nothing."""
    if isinstance(value, Mapping):
        return {
            key: _relevant_fields(item) for key, item in value.items() if key not in _IRRELEVANT
        }
    return [_relevant_fields(item) for item in value] if isinstance(value, list) else value


def _pieces(tokenizer: Mapping[str, Any], entries: Entries) -> Parts:
    """Scores that put pieces in the order in which the merges make them."""
    tokens: Sequence[str] = entries[f"{PREFIX}tokens"]
    ranks: dict[str, int] = {}
    merges = _merges(tokenizer)
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", "", 1), rank)
    scores = [-float(ranks.get(token, len(merges) + index)) for index, token in enumerate(tokens)]
    prefix = _adds_space(tokenizer)
    found: Entries = {
        f"{PREFIX}scores": scores,
        f"{PREFIX}pre": ASSUMED,
        f"{PREFIX}add_space_prefix": bool(prefix),
    }
    if prefix is None:
        return found, ("whether the tokenizer adds a space before a text is not known: it is not",)
    return found, ()


def _adds_space(tokenizer: Mapping[str, Any]) -> bool | None:
    """Whether a text begins as if a space stood before it; None where that is not known."""
    steps = tokenizer.get("pre_tokenizer") or {}
    if steps.get("type") == "Metaspace":
        scheme = steps.get("prepend_scheme")
        return bool(steps.get("add_prefix_space")) if scheme is None else scheme != "never"
    normalizer = tokenizer.get("normalizer") or {}
    kinds = [one.get("type") for one in normalizer.get("normalizers", [normalizer])]
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
    if ids["bos"] is None and _text(settings.get("bos_token")) in tokens:
        ids["bos"] = tokens.index(_text(settings["bos_token"]))
    found: Entries = {
        f"{PREFIX}{name}_token_id": index
        for name, index in ids.items()
        if index is not None and index < len(tokens)
    }
    for name in ("add_bos_token", "add_eos_token"):
        flag = block and getattr(block, name)
        if flag is not None:
            found[f"{PREFIX}{name}"] = flag
    return found


def _text(token: Any) -> str:
    """A special token of tokenizer_config.json, which may be an object."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _template(package: Package, settings: Mapping[str, Any]) -> str | None:
    if package.store.exists(_TEMPLATE):
        return package.store.read(_TEMPLATE).tobytes().decode("utf-8", errors="replace")
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None
