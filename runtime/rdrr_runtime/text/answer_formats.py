"""How a model's answers mark reasoning and calls of tools: a table, recognised by the template.

The table is `answer_formats.json`. A chat template holds the marks that its model was trained to
write, so its text says which rows apply. A template that no row knows has the format `PLAIN`, whose
answers are content only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Tags:
    """Texts before and after each part of a call whose arguments are marked one by one.

    Attributes:
        name: Around the name of the tool.
        key: Around the name of an argument.
        value: Around its value.
    """

    name: tuple[str, str]
    key: tuple[str, str]
    value: tuple[str, str]


@dataclass(frozen=True)
class Marks:
    """A row of the table.

    Attributes:
        name: What the row is called.
        begin: Texts that begin the part.
        end: Texts that end it; without any, the end of the answer or the next part does.
        hidden: Texts around parts, which are not shown.
        arguments: Forms of the arguments, which are tried in this order: `json`, `named` (a name,
            then JSON), `tags`, `braces` or `python`.
        separators: Texts between the name and the JSON of `named`.
        tags: The texts of `tags`.
        quote: What `braces` writes around strings.
        bare: What an answer begins with, spaces aside, that is a call without a mark.
        keys: Names of the tool and its arguments in JSON.
        forced: What begins a call that must come, before its JSON object; with `{name}`, before
            the JSON of its arguments. None where the form is not JSON.
        message: What ends the head of a channel; empty for no channels.
        prompt: The end of a prompt whose answer begins within the head of a channel.
        content: What begins content, where a form is asked for.
        recipient: What stands before the name of a tool in a head.
        reasoning: Words of a head whose channel is reasoning.
    """

    name: str = ""
    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    separators: tuple[str, ...] = ()
    tags: Tags | None = None
    quote: str = '"'
    bare: tuple[str, ...] = ()
    keys: tuple[str, str] = ("name", "arguments")
    forced: str | None = None
    message: str = ""
    prompt: str = ""
    content: str = ""
    recipient: str = ""
    reasoning: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerFormat:
    """The format of a model's answers.

    Attributes:
        reasoning: How reasoning is marked; None if it is not.
        calls: How calls of tools are marked; None if they are not.
        channels: How channels are marked, which are reasoning, calls and content; None for none.
    """

    reasoning: Marks | None = None
    calls: Marks | None = None
    channels: Marks | None = None
    _texts: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def forms(self) -> Marks | None:
        """The row that says how calls are written."""
        return self.channels or self.calls

    def opening(self, prompt: str, *, forced: str | None = None) -> str:
        """Return what follows a prompt whose answer has a form of its own, such as JSON.

        Reasoning that the prompt begins ends at once, since it could not have that form.

        Args:
            prompt: The prompt.
            forced: The tool that the answer calls; empty if the answer names it; None for no call.
        """
        text, forms = "", self.forms
        if self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.begin):
            text = f"{self.reasoning.end[0]}\n\n"
        if forced is None:
            return text + (self.channels.content if self.channels is not None else "")
        begin = "" if forms is None or not self.states_call(forced) else forms.forced or ""
        return text + begin.replace("{name}", forced)

    def states_call(self, forced: str) -> bool:
        """Return whether a forced call may begin as the format says.

        Args:
            forced: The tool; empty if the answer names it.
        """
        begin = None if self.forms is None else self.forms.forced
        return begin is not None and (bool(forced) or "{name}" not in begin)

    def shows(self, token: str) -> bool:
        """Return whether the text of a special token is part of a mark, so that it must be kept."""
        return any(token in text for text in self._texts)


PLAIN = AnswerFormat()
"""The format of answers that have no marks."""


@cache
def recognise(template: str) -> AnswerFormat:
    """Return the format of the answers to prompts of a chat template.

    Args:
        template: Source of the template.
    """
    rows = {
        table: _first(_table()[table], template) for table in ("channels", "reasoning", "calls")
    }
    if rows["channels"] is not None:
        rows = {"channels": rows["channels"]}
    stated = {table: row for table, row in rows.items() if row is not None}
    texts = frozenset(text for row in stated.values() for text in _texts(row))
    return AnswerFormat(**{table: _marks(row) for table, row in stated.items()}, _texts=texts)


def _first(rows: Sequence[dict[str, Any]], template: str) -> dict[str, Any] | None:
    for row in rows:
        if any(all(mark in template for mark in marks) for marks in row["marks"]):
            return row
    return None


def _marks(row: Mapping[str, Any]) -> Marks:
    values = {key: value for key, value in row.items() if key not in ("marks", "tags")}
    tags = {key: tuple(pair) for key, pair in row.get("tags", {}).items()}
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Marks(**{**values, **lists, "tags": Tags(**tags) if tags else None})


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts of a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


@cache
def _table() -> dict[str, Any]:
    text = files(__package__).joinpath("answer_formats.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
