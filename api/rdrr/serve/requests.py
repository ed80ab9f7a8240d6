"""What a request may say, checked: the fields of OpenAI's API that are served.

Fields that nobody here serves are ignored, as other servers do, unless an answer without them would
be wrong; those are refused by name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rdrr_format.errors import UsageError
from rdrr_format.options import options_of
from rdrr_runtime.sampling.logprobs import MAX_TOP
from rdrr_runtime.sampling.params import SamplingParams

MOST_TEXTS = 16
"""Most texts of a request: prompts times `n`."""

MOST_STOPS = 16
MOST_BIASES = 1024

REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "suffix": (None, ""),
        "best_of": (None, 1),
        "audio": (None,),
        "modalities": (None, ["text"]),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "web_search_options": (None,),
    }
)
"""Fields that change the answer and are not served, with the values that change nothing."""


class Request(BaseModel):
    """Fields of every request for text."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_TEXTS)] = 1
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    parameters: SamplingParams
    """The fields that are sampling parameters; temperature 1 is the default of this API."""
    seed: int | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MOST_BIASES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    response_format: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_refused(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, harmless in REFUSED.items():
                if data.get(name) not in harmless:
                    raise ValueError(f"`{name}` is not served")
        return data

    @model_validator(mode="before")
    @classmethod
    def _collect_parameters(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {
            name: data[key]
            for name, declared in options_of(SamplingParams).items()
            if name not in ("seed", "logit_bias")
            for key in (*declared.also_known_as, name)
            if data.get(key) is not None
        }
        return {**data, "parameters": {"temperature": 1.0, **given}}

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (
            ()
            if self.stop is None
            else tuple([self.stop] if isinstance(self.stop, str) else self.stop)
        )

    @property
    def has_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk of the counts."""
        return bool((self.stream_options or {}).get("include_usage"))

    def sampling(self, vocab_size: int, copy: int = 0) -> SamplingParams:
        """Return how tokens are chosen.

        Args:
            vocab_size: Number of token ids.
            copy: Number of the text among those of the same prompt, each of which has its own seed.

        Raises:
            UsageError: A value is out of range.
        """
        seed = None if self.seed is None else (self.seed + copy) % 2**63
        chosen = replace(self.parameters, seed=seed, logit_bias=self._biases())
        chosen.check_ids(vocab_size)
        return chosen

    def _biases(self) -> dict[int, float]:
        try:
            return {int(key): bias for key, bias in (self.logit_bias or {}).items()}
        except ValueError as error:
            raise UsageError("the keys of logit_bias are token ids", found=error) from None


class CompletionRequest(Request):
    """A request for `/v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None

    @model_validator(mode="after")
    def _check_texts(self) -> CompletionRequest:
        if not 0 < len(self.prompts) * self.n <= MOST_TEXTS:
            raise ValueError(f"a request has 1 to {MOST_TEXTS} texts, `n` for each prompt")
        if self.echo and self.logprobs is not None:
            raise ValueError("`echo` with `logprobs` is not served")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, as text or token ids."""
        prompt: Any = self.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return [prompt]
        return list(prompt)


class ChatRequest(Request):
    """A request for `/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages as templates know them: text instead of parts, no role `developer`.

        Raises:
            UsageError: A message has a part that is no text.
        """
        return [_plain(message, at) for at, message in enumerate(self.messages)]


def _plain(message: Mapping[str, Any], at: int) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    if plain.get("role") == "developer":
        plain["role"] = "system"
    content = plain.get("content", "")
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
                raise UsageError(
                    "only text is served", where=f"messages.{at}", expected="text", found=kind
                )
        content = "".join(part["text"] for part in content)
    return {**plain, "content": content}


def now() -> int:
    """Return the time that answers carry, in seconds."""
    return int(time.time())
