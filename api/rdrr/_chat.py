"""A conversation of several turns with a model.

It holds messages only. Which of their tokens the key-value cache still holds is the engine's
business: each turn gives it the whole text, and it runs what is new.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rdrr_format.errors import UsageError
from rdrr_format.locations import local_path
from rdrr_format.stores import replace_file

from rdrr._generation import Generation
from rdrr._model import Model
from rdrr._texts import read_text


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
        replace_file(local_path(path), content.encode())

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
