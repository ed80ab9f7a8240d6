"""Messages to the text of a prompt, by a package's chat template.

Templates are Jinja of the dialect that transformers defined: blocks are trimmed, `raise_exception`,
`strftime_now` and a `tojson` that escapes nothing are there, and so are loop controls and a
`generation` block, which marks the assistant's words and changes nothing. They come from strangers:
they run in the sandbox and see plain JSON values only. Where a template lies is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from rdrr_format.errors import GenerationError, ManifestError, UsageError

Message = Mapping[str, Any]
_MARK = "\u2063answer\u2063"


class ChatTemplate:
    """A compiled template.

    Args:
        source: Its text.
        tokens: Special tokens by their names in the template, as `bos_token`.
        where: Where the text is from, for errors.

    Raises:
        ManifestError: The text is no template.
    """

    def __init__(self, source: str, tokens: Mapping[str, Any], *, where: str) -> None:
        self._tokens = dict(tokens)
        self._where = where
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ManifestError(
                "cannot be read as a chat template", where=where, found=error
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: Each with `role` and `content`, and whatever else the template reads.
            add_generation_prompt: End with what begins the assistant's next message.
            tools: JSON schemas of functions that the model may call.
            variables: Whatever else the template reads, as `enable_thinking`.

        Raises:
            UsageError: A message is not made of JSON values.
            GenerationError: The template refuses the messages.
        """
        given = {"messages": list(messages), "tools": tools, "documents": None}
        given |= {**self._tokens, **(variables or {})}
        try:
            values = json.loads(json.dumps(given))
        except (TypeError, ValueError) as error:
            raise UsageError("messages must be JSON values", found=error) from None
        if not all(isinstance(message, dict) for message in values["messages"]):
            raise UsageError("messages must be objects", expected='{"role": ..., "content": ...}')
        try:
            return self._template.render(**values, add_generation_prompt=add_generation_prompt)
        except Exception as error:  # whatever the code of a template may raise
            raise GenerationError(
                "the chat template refuses the messages", where=self._where, found=error
            ) from error

    def after_answer(self) -> str:
        """What the template writes after an assistant's message; nothing where it cannot tell."""
        user, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}
        try:
            text = self.render([user, answer], add_generation_prompt=False)
        except GenerationError:
            return ""
        return text.partition(_MARK)[2]


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, a scope and no more."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
