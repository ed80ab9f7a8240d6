"""The parts of an answer: content, reasoning and calls of tools.

One machine reads an answer in pieces, as they are generated, or as a whole: the parts, joined, are
the same. Text that may be the beginning of a mark waits until it is certain; the text of a call
waits until the call is complete. What is no call although it is marked as one stays content, as it
was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from rdrr_runtime.text.answer_formats import AnswerFormat, Marks
from rdrr_runtime.text.call_bodies import Call, Schemas, plain_name, read_arguments, read_calls

SPACE = " \t\r\n"
"""What is left out between parts."""

Kind = Literal["content", "reasoning", "call"]
Shown = Literal["content", "reasoning"]


class Part(NamedTuple):
    """A part of an answer.

    Attributes:
        kind: What it is.
        text: Text that follows the text of this kind before it, or the arguments of a call.
        name: The tool that is called.
    """

    kind: Kind
    text: str
    name: str = ""


@dataclass(frozen=True)
class _State:
    """Where in an answer the machine is.

    Attributes:
        name: What the text here is; that of a `call` or a `head` is kept until its end.
        ends: The marks that end it.
        marks: The format of a call.
        opening: The mark that began it, which stays text if there is no call.
        tool: The tool that is called, where it stands before the arguments.
    """

    name: Literal["content", "reasoning", "call", "head"]
    ends: tuple[str, ...] = ()
    marks: Marks | None = None
    opening: str = ""
    tool: str = ""

    @property
    def shows(self) -> Shown | None:
        """What the text here is as it comes; None where it is kept until the end."""
        return None if self.name in ("call", "head") else cast("Shown", self.name)


class AnswerReader:
    """Reads an answer.

    Args:
        form: The format of the answers.
        schemas: The schemas of the tools by their names; None where no tools may be called.
        prompt: The prompt, whose end may begin reasoning or a channel.
        forced: The tool of a call that the whole answer is, or an empty name where the answer
            states it; None for any answer.
    """

    def __init__(
        self,
        form: AnswerFormat,
        schemas: Schemas | None = None,
        *,
        prompt: str = "",
        forced: str | None = None,
    ) -> None:
        self._form, self._schemas = form, schemas or {}
        self._calls = form.calls if schemas is not None else None
        self._may_call = schemas is not None
        self._outside = _State("content", self._outer_marks())
        self._state = self._first(prompt.rstrip(SPACE), forced)
        self._held = ""
        self._searched = 0
        self._space = ""  # white space that is left out if another part follows
        self._before = ""  # what was left out before a call, in case that it is none
        self._trims = self._state.name != "content"
        self._may_be_bare = True
        self._parts: list[Part] = []

    def feed(self, text: str) -> list[Part]:
        """Take text, and return the parts that are certain by now."""
        self._held += text
        while self._step():
            pass
        return self._taken()

    def end(self) -> list[Part]:
        """Return the parts that the end of the answer leaves."""
        state, text, self._held = self._state, self._held, ""
        if state.name == "call":
            self._call(state, text, "")
        elif state.name == "head":
            self._emit("content", state.opening + text)
        elif state.shows is not None:
            self._emit(state.shows, text)
        if self._state.name == "content" and self._space and not self._trims:
            self._parts.append(Part("content", self._space))
        self._space = ""
        return self._taken()

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _outer_marks(self) -> tuple[str, ...]:
        rows = [self._form.reasoning, self._form.channels, self._calls]
        stated = [row for row in rows if row is not None]
        texts = [text for row in stated for text in (*row.begin, *row.hidden)]
        # An end without its beginning is no text, such as that of reasoning in the prompt.
        ends = [text for row in stated if row.message for text in row.end]
        return (*texts, *ends)

    def _first(self, prompt: str, forced: str | None) -> _State:
        channels, reasoning = self._form.channels, self._form.reasoning
        if forced is not None:
            return _State("call", marks=Marks(arguments=("json",)), tool=forced)
        if channels is not None and prompt.endswith(channels.prompt):
            return _State("head", (channels.message,))
        if reasoning is not None and prompt.endswith(reasoning.begin):
            return _State("reasoning", reasoning.end)
        return self._outside

    def _step(self) -> bool:
        """Handle the text up to the next mark; return False if more text must come first."""
        state = self._state
        if self._may_be_bare and state.name == "content" and self._calls is not None:
            bare = self._is_bare(self._calls)
            if bare is None:
                return False
            self._may_be_bare = False
            if bare:
                self._enter(_State("call", self._calls.begin, self._calls))
                return True
        at, mark = _earliest(self._held, state.ends, self._searched)
        if mark:
            text, self._held = self._held[:at], self._held[at + len(mark) :]
            self._searched = 0
            self._leave(state, text, mark)
            return True
        keep = _overlap(self._held, state.ends)
        if state.shows is None:
            self._searched = len(self._held) - keep
        else:
            self._emit(state.shows, self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return False

    def _leave(self, state: _State, text: str, mark: str) -> None:
        """End a state at a mark, and enter the one that follows."""
        if state.name == "call":
            self._call(state, text, mark)
        elif state.name == "head":
            self._enter(self._channel(text, state.opening))
            return
        elif state.shows is not None:
            self._emit(state.shows, text)
        goes_on = state.name == "call" and not self._trims  # it was text
        space = self._space
        self._enter(self._after(mark))
        if goes_on and self._state is self._outside:
            self._space, self._trims = space, False

    def _after(self, mark: str) -> _State:
        """Return the state that a mark begins."""
        calls, reasoning, channels = self._calls, self._form.reasoning, self._form.channels
        if channels is not None and mark in channels.begin:
            return _State("head", (channels.message,), opening=mark)
        if calls is not None and mark in calls.begin:
            return _State("call", calls.end or calls.begin, calls, mark)
        if reasoning is not None and mark in reasoning.begin:
            return _State("reasoning", reasoning.end)
        return self._outside

    def _enter(self, state: _State) -> None:
        self._state = state
        self._before = "" if self._trims else self._space
        self._space = ""
        self._trims = True
        self._may_be_bare = state is self._outside

    def _channel(self, head: str, opening: str) -> _State:
        """Return the state that the head of a channel begins."""
        channels = self._form.channels
        assert channels is not None
        ends = (*channels.end, *channels.begin)
        _, is_call, recipient = head.partition(channels.recipient)
        if is_call and self._may_call and recipient.split():
            name = recipient.partition("<")[0].split()[0]
            written = opening + head + channels.message
            return _State("call", ends, channels, written, plain_name(name))
        is_reasoning = any(word in head for word in channels.reasoning)
        return _State("reasoning" if is_reasoning else "content", ends)

    def _is_bare(self, calls: Marks) -> bool | None:
        """Return whether the answer begins with a call without a mark; None if that is open."""
        begun = "".join(self._held.split())
        if any(begun.startswith(text) for text in calls.bare):
            return True
        return None if any(text.startswith(begun) for text in calls.bare) else False

    def _call(self, state: _State, text: str, mark: str) -> None:
        """Emit the calls in a text, or the text if it has none."""
        assert state.marks is not None
        calls = self._read(state, text)
        is_marked = state.opening or state.tool
        if calls and (is_marked or all(call.name in self._schemas for call in calls)):
            self._parts += [Part("call", call.arguments, call.name) for call in calls]
            self._trims = True
        else:
            shown = mark if mark in state.marks.end else ""
            self._trims = False
            self._emit("content", self._before + state.opening + text + shown)

    def _read(self, state: _State, text: str) -> list[Call]:
        assert state.marks is not None
        if not state.tool:
            return read_calls(text, state.marks, self._schemas)
        try:
            return [Call(state.tool, read_arguments(text))]
        except (ValueError, RecursionError):
            return []

    def _emit(self, kind: Shown, text: str) -> None:
        """Add text to the parts, without white space at the borders of parts."""
        text = self._space + text
        if self._trims:
            text = text.lstrip(SPACE)
        shown = text.rstrip(SPACE)
        self._space = text[len(shown) :]
        if shown:
            self._trims = False
            self._parts.append(Part(kind, shown))


def _earliest(text: str, marks: Sequence[str], begin: int) -> tuple[int, str]:
    """Return the first mark in a text and its position, the longer of two; an empty one if none."""
    hits = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark, begin)) >= 0]
    if not hits:
        return 0, ""
    at, _, mark = min(hits)
    return at, mark


def _overlap(text: str, marks: Sequence[str]) -> int:
    """Return how many characters at the end of a text may begin a mark."""
    longest = max((len(mark) for mark in marks), default=1) - 1
    tail = text[len(text) - min(longest, len(text)) :]
    return next(
        (
            len(tail) - at
            for at in range(len(tail))
            if any(mark.startswith(tail[at:]) for mark in marks)
        ),
        0,
    )


def joined(parts: Sequence[Part]) -> list[Part]:
    """Return parts with those of the same kind joined that follow each other, calls apart."""
    result: list[Part] = []
    for part in parts:
        if result and part.kind == result[-1].kind != "call":
            result[-1] = Part(part.kind, result[-1].text + part.text)
        else:
            result.append(part)
    return result
