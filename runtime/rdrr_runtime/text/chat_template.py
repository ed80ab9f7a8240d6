"""Messages to the text of a prompt, by a package's chat template.

Templates are Jinja of the dialect that transformers defined: blocks are trimmed, `raise_exception`,
`strftime_now` and a `tojson` that escapes nothing are there, and so are loop controls and a
`generation` block, which marks the assistant's words and changes nothing. They come from strangers:
they run in a sandbox, within a budget (see `template_sandbox`), and see plain JSON values only.
Where a template lies is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from rdrr_format.errors import GenerationError, RdrrError, UsageError

from rdrr_runtime.text.template_budget import MAX_TEXT
from rdrr_runtime.text.template_sandbox import compile_template

Message = Mapping[str, Any]
_MARK = "\u2063answer\u2063"
_MAX_FORM = 256
"""Characters of a form of a date."""


class ChatTemplate:
    """A compiled template.

    Args:
        source: Its text.
        tokens: Special tokens by their names in the template, as `bos_token`.
        where: Where the text is from, for errors.

    Raises:
        ManifestError: The text is too long, or no template.
    """

    def __init__(self, source: str, tokens: Mapping[str, Any], *, where: str) -> None:
        self.source = source
        self._tokens = dict(tokens)
        self._where = where
        self._template = compile_template(source, _MORE, where)

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
            UsageError: A message is not made of JSON values, or all of them are too long.
            GenerationError: The template refuses the messages, or costs too much.
        """
        try:
            given = {"messages": list(messages), "tools": tools, "documents": None}
            given |= {**self._tokens, **(variables or {})}
            text = json.dumps(given, ensure_ascii=False)
            values = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError("messages must be JSON values", found=error) from None
        if len(text) > MAX_TEXT:
            raise UsageError(
                "the messages are too long",
                expected=f"at most {MAX_TEXT} characters",
                found=len(text),
            )
        if not all(isinstance(message, dict) for message in values["messages"]):
            raise UsageError("messages must be objects", expected='{"role": ..., "content": ...}')
        try:
            values["add_generation_prompt"] = add_generation_prompt
            return self._template.render(values, _MORE)
        except RdrrError:
            raise
        except Exception as error:  # whatever the code of a template may raise
            raise GenerationError(
                "the chat template refuses the messages",
                where=self._where,
                found=str(error) or type(error).__name__,
            ) from error

    def after_answer(self) -> str:
        """What the template writes after an assistant's message; nothing where it cannot tell."""
        user, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}
        try:
            text = self.render([user, answer], add_generation_prompt=False)
        except GenerationError:
            return ""
        return text.partition(_MARK)[2]


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
    if len(form) > _MAX_FORM:
        raise TemplateError(f"a form of a date has at most {_MAX_FORM} characters")
    return datetime.now().strftime(form)


_MORE: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"tojson": _to_json, "raise_exception": _refuse, "strftime_now": _now}
)
