"""Render the messages of a conversation as the text of a prompt, with a package's chat template.

Templates are written in the Jinja dialect of transformers: blocks are trimmed; `raise_exception`,
`strftime_now` and a `tojson` without HTML escapes are available, as are loop controls and the
`generation` block, which marks the assistant's words and does not change the text. Templates are
untrusted: they run in a sandbox with a budget (see `template_sandbox`) and see plain JSON values
only. Finding the template in a package is the caller's task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from rdrr_format.errors import GenerationError, RdrrError, UsageError
from rdrr_format.options import shown

from rdrr_runtime.text.template_budget import MAX_TEXT
from rdrr_runtime.text.template_sandbox import compile_template, literal_text

Message = Mapping[str, Any]
_ANSWER_MARKER = "\u2063answer\u2063"
_MAX_DATE_FORMAT = 256
"""Most characters of the format string that a template passes to `strftime_now`."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source of the template.
        tokens: Special tokens by the names that templates use for them, such as `bos_token`.
        where: File that the source was read from, for error messages.
        control_tokens: Added tokens that are control tokens besides the special ones; None for
            those whose text the template holds.

    Raises:
        ManifestError: The source is too long or is not a valid template.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, Any],
        *,
        where: str,
        control_tokens: Sequence[str] | None = None,
    ) -> None:
        self.source = source
        self._stated = control_tokens
        self._tokens = dict(tokens)
        self._where = where
        self._template = compile_template(source, _HELPERS, where)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: Objects with `role`, `content` and any other keys that the template reads.
            add_generation_prompt: End the text with the beginning of the assistant's next message.
            tools: JSON schemas of the functions that the model may call.
            variables: Further variables that the template reads, such as `enable_thinking`.

        Raises:
            UsageError: A message contains something other than JSON values, or the messages are
                too long together.
            GenerationError: The template refuses the messages or exceeds its budget.
        """
        try:
            given = {"messages": [*map(_plain, messages)], "tools": tools, "documents": None}
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
        if isinstance(messages, (str, Mapping)) or not all(map(_has_role, values["messages"])):
            raise UsageError(
                "the messages must be a list of objects with a role",
                expected='[{"role": "user", "content": "..."}]',
                found=shown(messages),
            )
        try:
            values["add_generation_prompt"] = add_generation_prompt
            return self._template.render(values, _HELPERS)
        except RdrrError:
            raise
        except Exception as error:  # whatever the code of a template may raise
            raise GenerationError(
                "the chat template refuses the messages",
                where=self._where,
                found=str(error) or type(error).__name__,
            ) from error

    def control_tokens(self, added: Mapping[str, bool]) -> list[str]:
        """Return the tokens that a message must not contain: special ones, and the template's own.

        Args:
            added: Added tokens of the tokenizer, with whether they are special.
        """
        if self._stated is not None:
            return [text for text, special in added.items() if special or text in self._stated]
        return [
            text
            for text, special in added.items()
            if special or (text in self._literals and not text.isspace())
        ]

    @cached_property
    def _literals(self) -> str:
        return literal_text(self.source, _HELPERS, self._where)

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template reads the tools that a model may call."""
        return re.search(r"\btools\b", self.source) is not None

    @cached_property
    def takes_arguments_as_text(self) -> bool:
        """Whether the arguments of a call must be JSON text, not an object, to be written as JSON.

        Most templates turn an object into JSON; some join it to other text.
        """
        function = {"name": "f", "arguments": {_ANSWER_MARKER: 1}}
        call = {"type": "function", "id": "123456789", "function": function}
        user = {"role": "user", "content": "?"}
        try:
            text = self.render([user, {"role": "assistant", "content": "", "tool_calls": [call]}])
        except GenerationError:
            return True
        return f"'{_ANSWER_MARKER}': 1" in text

    def after_answer(self) -> str:
        """Return the text that the template writes after an assistant's message.

        The text is empty if the template refuses the two messages that it is tried with.
        """
        return self._after_answer

    @cached_property
    def _after_answer(self) -> str:
        user, answer = (
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _ANSWER_MARKER},
        )
        try:
            text = self.render([user, answer], add_generation_prompt=False)
        except GenerationError:
            return ""
        return text.partition(_ANSWER_MARKER)[2]


_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first one, and those of gpt-oss the second."""


def _has_role(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def _plain(message: Any) -> Any:
    """Return a message without the keys whose value is null, and with its reasoning's names."""
    if not isinstance(message, Mapping):
        return message
    stated = {key: value for key, value in message.items() if value is not None}
    reasoning = next((stated[key] for key in _REASONING if key in stated), None)
    if reasoning is None:
        return stated
    return {"thinking": reasoning, **stated, "reasoning_content": reasoning}


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    is_text = isinstance(message, (str, int, float))
    raise TemplateError(str(message) if is_text else "raise_exception takes a text")


def _now(date_format: str) -> str:
    if len(date_format) > _MAX_DATE_FORMAT:
        raise TemplateError(f"the date format is longer than {_MAX_DATE_FORMAT} characters")
    return datetime.now().strftime(date_format)


_HELPERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"tojson": _to_json, "raise_exception": _refuse, "strftime_now": _now}
)
