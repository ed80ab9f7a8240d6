"""The special tokens that the files beside a `tokenizer.json` state, read as transformers does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"

STANDARD_NAMES = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
"""Names that every tokenizer may have; a model may have others, such as `image_token`."""

_EXTRA, _MORE, _NAMED = (
    "extra_special_tokens",
    "additional_special_tokens",
    "model_specific_special_tokens",
)


def merged_settings(settings: Mapping[str, Any], special: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those of the older file for special tokens.

    The older file replaces the settings, unless these hold `added_tokens_decoder`: then nothing
    reads it.

    Args:
        settings: Content of tokenizer_config.json.
        special: Content of special_tokens_map.json.
    """
    is_read = settings.get("added_tokens_decoder") is None
    return {**settings, **special} if is_read else {**settings}


def token_text(value: Any) -> str | None:
    """Return the text of a token, which is stated as a text or as an object with `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens by the names that chat templates use for them.

    Args:
        settings: What `merged_settings` returns.
    """
    named = {key: value for key, value in settings.items() if key.endswith("_token")}
    for key in (_NAMED, _EXTRA):
        stated = settings.get(key)
        named |= stated if isinstance(stated, Mapping) else {}
    texts = {name: token_text(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if text is not None}


def extra_tokens(settings: Mapping[str, Any]) -> list[str]:
    """Return the special tokens without names.

    Args:
        settings: What `merged_settings` returns.
    """
    stated = settings.get(_EXTRA) or settings.get(_MORE)
    texts = map(token_text, stated if isinstance(stated, list) else ())
    return [text for text in texts if text is not None]


def named_templates(stated: Any) -> dict[str, str]:
    """Return the chat templates of a setting by name; a single one is called `default`.

    Args:
        stated: Value of `chat_template`: a text, an object, or a list of objects with a name.
    """
    if isinstance(stated, list):
        stated = {
            entry["name"]: entry.get("template")
            for entry in stated
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        }
    templates = stated if isinstance(stated, dict) else {"default": stated}
    return {name: text for name, text in templates.items() if isinstance(text, str)}
