"""What a request may say, checked: the fields of OpenAI's API that are served.

Fields that nobody here serves are ignored, as other servers do, and named in a header of the
answer. Those without which an answer would be wrong are refused, and so are names that are nearly
that of a field, since they are misspelt.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rdrr_format.errors import UsageError
from rdrr_format.options import options_of
from rdrr_runtime.sampling.logprobs import MAX_TOP
from rdrr_runtime.sampling.params import SamplingParams

Fetch = Callable[[str, str], bytes]
"""A function of a URL and of what an error message calls it."""

MOST_TEXTS = 16
"""Most texts of a request: prompts times `n`."""

MOST_STOPS = 16
MOST_BIASES = 1024
MOST_UNKNOWN = 32

_UNSERVED: Mapping[str, Any] = json.loads(
    files(__package__).joinpath("unserved_fields.json").read_text(encoding="utf-8")
)
"""Fields of other servers, in a table that the browser runtime reads too."""

GRAMMARS: tuple[str, ...] = tuple(_UNSERVED["grammars"])
"""Names under which other servers take the form of an answer."""

REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {name: tuple(values) for name, values in _UNSERVED["refused"].items()}
    | dict.fromkeys(GRAMMARS, (None, "", [], {}))
)
"""Fields that change the answer and are not served, with the values that change nothing.

A route that serves one of them has it as a field.
"""

HARMLESS = frozenset(_UNSERVED["harmless"])
"""Fields that are not served and change no answer of this server."""

SAMPLING: Mapping[str, str] = MappingProxyType(
    {
        key: name
        for name, declared in options_of(SamplingParams).items()
        if name not in ("seed", "logit_bias")
        for key in (*declared.also_known_as, name)
    }
)
"""The sampling parameter of each field that gives one; of two spellings the one here counts."""

EQUIVALENTS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"top_k": (-1, 0), "top_p": (0, 1e-6)}
)
"""A value that other servers document for a sampling parameter, and what says the same here.

vLLM and llama.cpp take all tokens with -1; OpenAI's probabilities begin with 0, which leaves the
most probable token.
"""

_NOTHING = re.compile("0[a-zµ0.]*")
"""A duration of 0, as a number or with units."""

ALIKE = 0.85
"""How alike the name of an unknown field and that of a field are where it is misspelt."""


class Body(BaseModel):
    """The body of a request, in which null means that a field is not stated.

    Clients send null for what their users leave out. Fields that change the answer and are not
    served are refused.
    """

    model_config = ConfigDict(extra="allow")

    keep_alive: int | float | str | None = None
    """How long Ollama's clients let a model stay loaded; here only 0 has a meaning."""

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in (REFUSED.keys() & data.keys()) - cls.model_fields.keys():
            if data[name] not in REFUSED[name]:
                instead = "; state `response_format`" if name in GRAMMARS else ""
                raise ValueError(f"`{name}` is not served{instead}")
        return {key: value for key, value in data.items() if value is not None}

    @property
    def unloads(self) -> bool:
        """Whether the package is unloaded after the answer, if no other request has it."""
        return _NOTHING.fullmatch(str(self.keep_alive)) is not None

    @property
    def ignored(self) -> list[str]:
        """The names of the fields that the server does not know.

        Raises:
            UsageError: A name is nearly that of a field.
        """
        unknown = [name for name in self.model_extra or {} if name not in HARMLESS | set(REFUSED)]
        known = {*type(self).model_fields, *SAMPLING}
        for name in unknown[:MOST_UNKNOWN]:
            if nearest := get_close_matches(name[:64], known, 1, ALIKE):
                raise UsageError(f"unknown field; did you mean {nearest[0]}?", found=name)
        return unknown[:MOST_UNKNOWN]


class Request(Body):
    """Fields of every request for text."""

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
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    context_shift: Annotated[bool | int, Field(ge=0)] = False

    @model_validator(mode="before")
    @classmethod
    def _collect_parameters(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {
            name: _equivalent(name, data[key])
            for key, name in SAMPLING.items()
            if data.get(key) is not None
        }
        others = {key: value for key, value in data.items() if key not in SAMPLING}
        return {**others, "parameters": {"temperature": 1.0, **given}}

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (
            ()
            if self.stop is None
            else tuple([self.stop] if isinstance(self.stop, str) else self.stop)
        )

    @property
    def kept_ids(self) -> int | None:
        """Number of first ids that a context shift keeps; None if the context does not shift."""
        return None if self.context_shift is False else int(self.context_shift)

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
        chosen = self.parameters
        if self.seed is not None or self.logit_bias:
            seed = None if self.seed is None else (self.seed + copy) % 2**63
            chosen = replace(chosen, seed=seed, logit_bias=self._biases())
        chosen.check_ids(vocab_size)
        return chosen

    def _biases(self) -> dict[int, float]:
        try:
            return {int(key): bias for key, bias in (self.logit_bias or {}).items()}
        except ValueError as error:
            raise UsageError("`logit_bias` has a key that is no token id", found=error) from None


def _equivalent(name: str, value: Any) -> Any:
    stated, meant = EQUIVALENTS.get(name, (None, None))
    return meant if type(value) in (int, float) and value == stated else value


class CompletionRequest(Request):
    """A request for `/v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool = False
    suffix: str | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None

    @model_validator(mode="after")
    def _check_texts(self) -> CompletionRequest:
        if not 0 < len(self.prompts) * self.n <= MOST_TEXTS:
            raise ValueError(f"a request has 1 to {MOST_TEXTS} texts, `n` for each prompt")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("`max_tokens` is at least 1 without `echo`")
        if self.suffix and not all(isinstance(prompt, str) for prompt in self.prompts):
            raise ValueError("a prompt with a `suffix` is a text")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, as text or token ids."""
        prompt: Any = self.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return [prompt]
        return list(prompt)


class ChatRequest(Request):
    """A chat, which the requests of all interfaces become."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None

    @property
    def top(self) -> int | None:
        """Number of alternatives of each token; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        effort = (
            {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        )
        return {**effort, **(self.chat_template_kwargs or {})}

    def plain_messages(self, fetch: Fetch | None = None) -> list[dict[str, Any]]:
        """Return the messages as templates know them: text instead of parts, no role `developer`.

        Args:
            fetch: Returns the content of the URL of an image; None if none is fetched.

        Raises:
            UsageError: A message has no role, or a part that is no text, image or video.
            GenerationError: An image cannot be fetched.
        """
        return [_plain(message, at, fetch) for at, message in enumerate(self.messages)]


class ChatCompletionRequest(ChatRequest):
    """A request for `/v1/chat/completions`, which names its model as in OpenAI's API."""

    model: str


_EXAMPLES = {"image": "png", "video": "gif"}
"""What a data URL may hold. Pillow decodes the frames of animations, and no other videos."""


def _plain(message: Mapping[str, Any], at: int, fetch: Fetch | None) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    if plain.get("role") == "developer":
        plain["role"] = "system"
    content = plain.get("content", "")
    _check_message(plain, content, f"messages.{at}")
    if isinstance(content, list):
        parts = [_part(part, f"messages.{at}", plain.get("role"), fetch) for part in content]
        is_text = all(part["type"] == "text" for part in parts)
        content = "".join(part["text"] for part in parts) if is_text else parts
    return {**plain, "content": content}


def _part(part: Any, where: str, role: Any, fetch: Fetch | None) -> dict[str, Any]:
    """Return a part of a message: a text, or an image or video of the user."""
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind in ("text", "input_text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal" and role == "assistant" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind not in ("image_url", "input_image", "video_url") or role != "user":
        raise UsageError(
            "only text, images and videos of the user are served",
            where=where,
            expected="text, image_url or video_url",
            found=kind,
        )
    what = "video" if kind == "video_url" else "image"
    url = part.get(f"{what}_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    if what == "image" and fetch is not None and isinstance(url, str) and url[:4].lower() == "http":
        return image_part(fetch(url, where))
    if not isinstance(url, str) or url[:5].lower() != "data:":
        # Neither a file of this machine nor another machine is read because a client names it.
        raise UsageError(
            f"only data URLs are taken as {what}s",
            where=where,
            expected=f"data:image/{_EXAMPLES[what]};base64,...",
            found=url[:64] if isinstance(url, str) else type(url).__name__,
        )
    if what == "image":
        return image_part(url)
    return {"type": "video", "video": url, "fps": part.get("fps")}


def image_part(url: str | bytes) -> dict[str, Any]:
    """Return an image as a part of a message of a chat."""
    return {"type": "image_url", "image_url": {"url": url}}


def _check_message(message: Mapping[str, Any], content: Any, where: str) -> None:
    if not isinstance(message.get("role"), str):
        raise UsageError("a message has a role", where=where, expected="user or the like")
    if not isinstance(content, str | list):
        kind = type(content).__name__
        raise UsageError("content is text or a list of parts", where=where, found=kind)
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise UsageError("`tool_calls` is a list of calls", where=where, found=calls)


def now() -> int:
    """Return the time that answers carry, in seconds."""
    return int(time.time())
