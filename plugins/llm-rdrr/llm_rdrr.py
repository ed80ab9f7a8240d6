"""A plugin for llm: RDRR packages as its models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llm
from pydantic import Field

PACKAGES = "LLM_RDRR_PACKAGES"
"""Environment variable with folders of packages."""


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Offer the packages of the hub's cache and of `LLM_RDRR_PACKAGES`."""
    from rdrr._hub_cache import cached_packages

    for package in cached_packages():
        register(RdrrModel(f"rdrr/{package.name}", package.path))
    for folder in filter(None, os.environ.get(PACKAGES, "").split(os.pathsep)):
        register(RdrrModel(f"rdrr/{Path(folder).name}", Path(folder)))


class RdrrModel(llm.Model):
    """A package, which is loaded with the first prompt.

    Args:
        model_id: Its name.
        path: Its folder.
    """

    can_stream = True

    class Options(llm.Options):
        """What a prompt may say."""

        max_tokens: int = Field(default=512, ge=1, description="Most new tokens.")
        temperature: float | None = Field(default=None, ge=0, description="0 is greedy.")
        top_k: int | None = Field(default=None, ge=1)
        top_p: float | None = Field(default=None, gt=0, le=1)
        seed: int | None = Field(default=None, ge=0)

    def __init__(self, model_id: str, path: Path) -> None:
        self.model_id = model_id
        self._path = path
        self._model: Any = None

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
    ) -> Iterator[str]:
        """Yield the answer to a prompt, in pieces."""
        del stream
        if self._model is None:
            import rdrr

            self._model = rdrr.load(self._path, follow_links=True)
        options = prompt.options.model_dump(exclude_none=True)
        generation = self._model.chat(_messages(prompt, conversation), **options)
        yield from generation
        response.set_usage(input=len(generation.prompt_ids), output=len(generation.token_ids))


def _messages(prompt: llm.Prompt, conversation: llm.Conversation | None) -> list[dict[str, str]]:
    """Return the conversation so far and the prompt."""
    said: list[dict[str, str]] = []
    before = [(past.prompt, past.text()) for past in _past(conversation)]
    system = next((each.system for each, _ in before if each.system), None) or prompt.system
    if system:
        said.append({"role": "system", "content": system})
    for question, answer in before:
        said.append({"role": "user", "content": question.prompt or ""})
        said.append({"role": "assistant", "content": answer})
    return [*said, {"role": "user", "content": prompt.prompt or ""}]


def _past(conversation: llm.Conversation | None) -> list[Any]:
    return [] if conversation is None else list(conversation.responses)
