"""The token ids of a conversation: the template's text around messages, and the ids of answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr._arguments import token_ids

if TYPE_CHECKING:
    from rdrr_runtime.text.chat_template import ChatTemplate
    from rdrr_runtime.text.control_tokens import ControlTokens
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
    """

    ids: list[int]
    ends: list[int]
    text: str


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
    """

    template: ChatTemplate
    codec: TextCodec
    ends: Collection[int]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any] | None
    control: ControlTokens | None

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
        answers = [at for at, message in enumerate(messages) if at and _ids_of(message)]
        if not answers:
            text = opened(self._text(plain))
            return self._encode(text), text
        ids = self._encode(self._text(plain[: answers[0]]))
        for at, following in zip(answers, [*answers[1:], len(plain)], strict=True):
            after = self._after(plain[:following], at)
            if after is None:
                text = opened(self._text(plain))
                return self._encode(text), text
            text = opened(after) if following == len(plain) else after
            ids += self._answer(messages[at]) + self._encode(text, follows=True)
        return ids, text

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
        tools, variables = self.tools, self.variables
        if self.control is not None:
            messages, tools, variables = self.control.marked([messages, tools, variables])
        return self.template.render(messages, tools=tools, variables=variables)

    def _encode(self, text: str, *, follows: bool = False) -> list[int]:
        return self.codec.encode_marked(text, follows=follows)


def _ids_of(message: Any) -> list[int]:
    """Return the ids that a message has; none if it has only a text."""
    stated = message.get(IDS) if isinstance(message, Mapping) else None
    return [] if stated is None else token_ids(stated, f"`{IDS}`")
