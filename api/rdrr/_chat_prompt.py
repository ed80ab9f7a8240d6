"""The token ids of a conversation: the template's text around messages, and the ids of answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import GenerationError

from rdrr._arguments import token_ids

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.images.patches import ImagePatches
    from rdrr_runtime.images.prompt import PromptImages
    from rdrr_runtime.text.chat_template import ChatTemplate
    from rdrr_runtime.text.control_tokens import ControlTokens
    from rdrr_runtime.text.image_places import ImagePlaces
    from rdrr_runtime.text.tokenizer import TextCodec

IDS = "token_ids"
"""Key of a message of the assistant: the ids that were generated, from which its text was made."""

_ANSWER = "\u2063answer\u2063"
"""Stands for an answer whose ids are known."""

Message = Mapping[str, Any]


@dataclass(frozen=True)
class RenderedChat:
    """The prompt of a conversation.

    Attributes:
        ids: Its token ids.
        ends: Ids that end the answer, besides those of the model.
        text: The end of its text, which tells what the answer begins with.
        images: Patches of its images, in its order.
    """

    ids: list[int]
    ends: list[int]
    text: str
    images: tuple[ImagePatches, ...] = ()


@dataclass(frozen=True)
class ChatPrompt:
    """How messages become token ids.

    Attributes:
        template: The chat template.
        codec: The tokenizer.
        ends: Ids that end an answer; the template writes what follows it.
        tools: JSON schemas of the functions that the model may call.
        variables: Further variables of the template.
        control: Control tokens, which the text of a message never becomes; None to allow them.
        images: The images of the messages; None if they have none.
    """

    template: ChatTemplate
    codec: TextCodec
    ends: Collection[int]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any] | None
    control: ControlTokens | None
    images: PromptImages | None = None

    def rendered(
        self,
        messages: Sequence[Message],
        *,
        opening: Callable[[str], str] | None = None,
        prefill: str = "",
    ) -> tuple[list[int], str]:
        """Return the ids of messages and of the beginning of the answer, and the end of their text.

        An answer with ids is part of the conversation as it was generated, with the special tokens
        that its text does not show.

        Args:
            messages: The messages.
            opening: Returns what follows the template's text, which may hold control tokens.
            prefill: Text that the answer begins with.
        """

        def opened(text: str) -> str:
            said = prefill if self.control is None else self.control.marked(prefill)
            return f"{text}{opening(text) if opening is not None else ''}{said}"

        plain: list[Message] = [
            {key: value for key, value in message.items() if key != IDS}
            if isinstance(message, Mapping)
            else message
            for message in messages
        ]
        parts = self._parts(plain, messages)
        text = opened(parts.pop())
        return self._joined([*parts, text]), text

    def _parts(self, plain: list[Message], messages: Sequence[Message]) -> list[Any]:
        """Return the parts of a prompt in order: text that the template writes, ids of answers."""
        answers = [at for at, message in enumerate(messages) if at and _ids_of(message)]
        if not answers:
            return [self._text(plain)]
        parts: list[Any] = [self._text(plain[: answers[0]])]
        for at, following in zip(answers, [*answers[1:], len(plain)], strict=True):
            after = self._after(plain[:following], at)
            if after is None:
                return [self._text(plain)]
            parts += [self._answer(messages[at]), after]
        return parts

    def _joined(self, parts: list[Any]) -> list[int]:
        """Return the ids of parts, with the tokens of images in their places.

        Raises:
            GenerationError: The template does not have one place for each image.
        """
        places = self._places()
        ids: list[int] = []
        for at, part in enumerate(parts):
            if isinstance(part, str) and places is not None:
                part = places.filled(part)
            ids += self._encode(part, follows=at > 0) if isinstance(part, str) else part
        if places is not None and self.images is not None:
            places.check(ids, self.codec.encode_as_is(self.images.processor.token))
        return ids

    def _places(self) -> ImagePlaces | None:
        from rdrr_runtime.text.image_places import ImagePlaces

        if self.images is None:
            return None
        return ImagePlaces(self.images.processor, self.images.layouts)

    def _answer(self, message: Message) -> list[int]:
        """Return the ids of an answer without its end, which the template writes."""
        ids = _ids_of(message)
        return ids[:-1] if ids and ids[-1] in self.ends else ids

    def _after(self, messages: list[Message], at: int) -> str | None:
        """Return the text after the answer at a position; None if the template leaves it out."""
        marker = _ANSWER
        while repr(marker)[1:-1] in repr(messages):  # nobody can write it into a message
            marker += _ANSWER
        marked = [*messages]
        marked[at] = {**messages[at], "content": marker}
        _, answer, text = self._text(marked).rpartition(marker)
        return text if answer else None

    def _text(self, messages: Sequence[Message]) -> str:
        stated = [messages, self.tools, self.variables]
        if self.control is None:
            return self._render(stated)
        marked = self.control.marked(stated)
        text = self._render(marked)
        if not self.control.can_arise(stated):
            return text
        return self.control.marked_where_cut(text, self._render(self.control.cut(marked)))

    def _render(self, stated: list[Any]) -> str:
        messages, tools, variables = stated
        return self.template.render(messages, tools=tools, variables=variables)

    def _encode(self, text: str, *, follows: bool = False) -> list[int]:
        return self.codec.encode_marked(text, follows=follows)


def _ids_of(message: Any) -> list[int]:
    """Return the ids that a message has; none if it has only a text."""
    stated = message.get(IDS) if isinstance(message, Mapping) else None
    return [] if stated is None else token_ids(stated, f"`{IDS}`")


def take_prompt_images(
    package: Package, messages: Sequence[Message], context: int
) -> tuple[Sequence[Message], PromptImages | None]:
    """Return messages as templates know them, and their images; None if they have none.

    Args:
        package: Package with the recipe of images, if its model sees.
        messages: Messages as the caller gave them.
        context: Most tokens of all images together.

    Raises:
        GenerationError: The package has no recipe, or an image is refused by it.
        StoreError: A file cannot be read.
        UsageError: A part of a message is no image, or Pillow is not installed.
    """
    from rdrr_runtime.images.prompt import read_images
    from rdrr_runtime.images.sources import take_images

    if not isinstance(messages, list | tuple):
        return messages, None  # what is no conversation is refused by the template
    messages, sources = take_images(messages)
    if not sources:
        return messages, None
    if package.manifest.processor is None:
        raise GenerationError(
            "the model does not see images: its package has no recipe for them",
            where=package.where,
            hint="convert a checkpoint that has a vision tower which rdrr knows",
        )
    return messages, read_images(package.manifest.processor, sources, max_tokens=context)
