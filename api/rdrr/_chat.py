"""A conversation of several turns with a model.

A conversation holds messages only. Each turn gives the engine the whole conversation, and the
engine runs only the tokens that the key-value cache does not hold yet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rdrr_format.errors import StoreError, UsageError
from rdrr_format.locations import local_path
from rdrr_format.stores import replace_file

from rdrr._chat_prompt import IDS
from rdrr._generation import Generation
from rdrr._model import Model
from rdrr._sight import content_with_images
from rdrr._texts import read_text


class Conversation:
    """The messages of a user and a model, in turns.

    Args:
        model: The model that answers.
        system: The system message, if there is one.
        template: File of a chat template that replaces the package's own.

    Attributes:
        messages: All messages so far, beginning with the system message.
    """

    def __init__(
        self, model: Model, *, system: str | None = None, template: str | Path | None = None
    ) -> None:
        self._model = model
        self._template = template
        self.messages: list[dict[str, Any]] = []
        self._shown: dict[str, list[Path]] = {"image": [], "video": []}
        self.instruct(system)

    def instruct(self, system: str | None) -> None:
        """Replace the system message, or remove it when None, and drop all other messages."""
        self.messages = [{"role": "system", "content": system}] if system else []

    def reset(self) -> None:
        """Drop all messages but the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"][:1]

    def show(self, file: str | Path, kind: Literal["image", "video"] = "image") -> None:
        """Add an image or a video to the next question.

        The question may say `<image>` or `<video>` where it belongs.

        Args:
            file: The file; of a video an animation, or a folder of frames.
            kind: What it is.

        Raises:
            StoreError: There is no such file.
        """
        path = local_path(file).absolute()
        if not (path.is_file() or (kind == "video" and path.is_dir())):
            raise StoreError(f"there is no such {kind}", where=path)
        self._shown[kind].append(path)

    def ask(self, text: str, **options: Any) -> Generation:
        """Ask a question and return the answer as it is generated.

        Call `answered` with the text of the answer before the next question.

        Args:
            text: The message of the user.
            options: Arguments of `Model.chat`.
        """
        # What is refused is not asked about again.
        shown, self._shown = self._shown, {kind: [] for kind in self._shown}
        content = content_with_images(text, shown["image"], shown["video"])
        asked = [*self.messages, {"role": "user", "content": content}]
        generation = self._model.chat(asked, template=self._template, **options)
        self.messages = asked
        return generation

    def answered(self, text: str, ids: Sequence[int] = ()) -> None:
        """Add the answer to the messages: all of it, or the part before it was stopped.

        Args:
            text: The text.
            ids: Its token ids, with which the next prompt holds the special tokens of the answer.
        """
        known = {IDS: list(ids)} if ids else {}
        self.messages.append({"role": "assistant", "content": text, **known})

    def withdraw(self) -> None:
        """Remove the last question if it has no answer."""
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
            UsageError: The file is not a list of messages in JSON.
        """
        try:
            read = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise UsageError("the file is not JSON", where=path, found=error) from None
        if not isinstance(read, list) or not all(_is_message(message) for message in read):
            raise UsageError(
                "the file is not a list of messages",
                where=path,
                expected="objects with role and content",
            )
        self.messages = read


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")  # a text, or parts of which some are images
    is_parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    return isinstance(content, str) or is_parts
