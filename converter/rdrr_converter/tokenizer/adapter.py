"""The tokenizer and the chat template that an adapter was trained with, in place of the base's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rdrr_format.tokenizer_settings import SETTINGS, SPECIAL

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.tokenizer.stated import ADDED, TEMPLATES

_VOCABULARY = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")
_STATED = (SETTINGS, SPECIAL, ADDED)
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_TEMPLATE = "chat_template"


def with_adapter_tokenizer(source: Source, folder: Path) -> Source:
    """Return the checkpoint with the tokenizer's files of an adapter.

    Files of a kind replace those of the base together: those of the vocabulary, the settings, and
    the chat templates. A kind that the adapter does not have is that of the base.

    Args:
        source: The checkpoint of the base.
        folder: Folder of the adapter.

    Raises:
        SourceError: A file cannot be read.
    """
    adapter = replace(source, path=folder, generated={})
    folders = (folder / TEMPLATES, source.path / TEMPLATES)
    named = sorted({f"{TEMPLATES}/{path.name}" for at in folders for path in at.glob("*.jinja")})
    generated = dict(source.generated)
    for names in (_VOCABULARY, _STATED, (*_TEMPLATES, *named)):
        files = {name: adapter.content(name) for name in names}
        if any(content is not None for content in files.values()):
            generated |= files
    own, base = _settings(adapter), _settings(source)
    if _TEMPLATE in own:
        generated |= dict.fromkeys((*_TEMPLATES, *named))
    elif _TEMPLATE in base and adapter.content(SETTINGS) is not None:
        generated[SETTINGS] = json.dumps(own | {_TEMPLATE: base[_TEMPLATE]}).encode()
    if generated == source.generated:
        return source
    note = "the tokenizer's files of the adapter are used"
    return replace(source, generated=generated, notes=(*source.notes, note))


def _settings(source: Source) -> dict[str, Any]:
    content = source.content(SETTINGS)
    return {} if content is None else parse_json_object(content, source.path / SETTINGS)
