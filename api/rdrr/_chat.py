"""Where a package's chat template lies, and a conversation of several turns.

A conversation holds messages only. What of them the key-value cache still holds is the engine's
business: each turn gives it the whole text, and it runs what is new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import ManifestError, UsageError
from rdrr_format.stores import replace_file

from rdrr._texts import read_text

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.text.chat_template import ChatTemplate

    from rdrr._generation import Generation
    from rdrr._model import Model

_FILE, _SETTINGS, _SPECIAL = (
    "chat_template.jinja",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def open_template(
    package: Package, *, file: str | Path | None = None, tools: bool = False
) -> ChatTemplate:
    """The template of a file, else of the package: its own file before its tokenizer's settings.

    Args:
        package: Whose.
        file: Used instead of the package's.
        tools: Prefer, among several named ones, the one for tools.

    Raises:
        ManifestError: There is none, or it is no template.
        StoreError: The file cannot be read.
    """
    from rdrr_runtime.text.chat_template import ChatTemplate

    settings = _object(package, _SETTINGS)
    if file is not None:
        source, where = read_text(file), str(file)
    elif package.store.exists(_FILE):
        source, where = _text(package, _FILE), _FILE
    else:
        source, where = _stated(package, settings.get("chat_template"), tools=tools), _SETTINGS
    return ChatTemplate(source, _tokens({**_object(package, _SPECIAL), **settings}), where=where)


def _stated(package: Package, stated: Any, *, tools: bool) -> str:
    if isinstance(stated, list):
        named = {one.get("name"): one.get("template") for one in stated if isinstance(one, dict)}
        stated = (named.get("tool_use") if tools else None) or named.get("default")
    if isinstance(stated, str):
        return stated
    raise ManifestError(
        "the package has no chat template",
        where=package.where,
        hint="give one in a file with --template FILE (template=... in Python)",
    )


def _tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Texts of the special tokens, which settings hold as they are or in an object."""
    found: dict[str, Any] = {}
    for name in _TOKENS:
        value = settings.get(f"{name}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[f"{name}_token"] = text
    return found


def _object(package: Package, name: str) -> dict[str, Any]:
    if not package.store.exists(name):
        return {}
    try:
        value = json.loads(_text(package, name))
    except (ValueError, RecursionError) as error:
        raise ManifestError("not JSON", where=name, found=error) from error
    return value if isinstance(value, dict) else {}


def _text(package: Package, name: str) -> str:
    return package.store.read(name).tobytes().decode("utf-8", errors="replace")


class Conversation:
    """Messages that a person and a model take turns in.

    Args:
        model: Who answers.
        system: First message, if any.
        template: File of a chat template instead of the package's.

    Attributes:
        messages: So far, the system's first.
    """

    def __init__(
        self, model: Model, *, system: str | None = None, template: str | Path | None = None
    ) -> None:
        self._model = model
        self._template = template
        self.messages: list[dict[str, Any]] = []
        self.instruct(system)

    def instruct(self, system: str | None) -> None:
        """Set the system's message, or take it away, and forget all others."""
        self.messages = [{"role": "system", "content": system}] if system else []

    def reset(self) -> None:
        """Forget all but the system's message."""
        self.messages = [one for one in self.messages if one["role"] == "system"][:1]

    def ask(self, text: str, **options: Any) -> Generation:
        """The answer to a person's message, as it comes; then call `answered`.

        Args:
            text: The message.
            options: As of `Model.generate`.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        generation = self._model.chat(asked, template=self._template, **options)
        self.messages = asked
        return generation

    def answered(self, text: str) -> None:
        """Take the answer, all of it or what there was before it was stopped."""
        self.messages.append({"role": "assistant", "content": text})

    def withdraw(self) -> None:
        """Take back a question that got no answer."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def save(self, path: str | Path) -> None:
        """Write the messages as JSON.

        Raises:
            StoreError: The file cannot be written.
        """
        content = json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n"
        replace_file(Path(path), content.encode())

    def load(self, path: str | Path) -> None:
        """Read messages that `save` wrote.

        Raises:
            StoreError: The file cannot be read.
            UsageError: It holds no messages.
        """
        try:
            read = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise UsageError("not JSON", where=path, found=error) from None
        if not isinstance(read, list) or not all(_is_message(one) for one in read):
            raise UsageError("not a list of messages", where=path, expected="role and content")
        self.messages = read


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )
