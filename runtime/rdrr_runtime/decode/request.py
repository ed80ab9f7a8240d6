"""What a generation is asked for, and the checks of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_format.errors import GenerationError

from rdrr_runtime.decode.rules import TokenRules
from rdrr_runtime.decode.strategy import Strategy
from rdrr_runtime.sampling.params import MAX_SEED


@dataclass(frozen=True)
class Request:
    """What a generation was asked for."""

    prompt: Sequence[int]
    max_tokens: int
    rules: TokenRules
    keep: int | None
    strategy: Strategy

    def rules_after(self, shifts: int) -> TokenRules:
        """Return the rules after some context shifts; each goes on with other random numbers."""
        seed = self.rules.sampling.seed
        if not shifts or seed is None:
            return self.rules
        return replace(
            self.rules, sampling=replace(self.rules.sampling, seed=(seed + shifts) & MAX_SEED)
        )


def check_prompt(
    prompt: Sequence[int], *, context: int, vocab_size: int, shifts: bool = False
) -> None:
    """Guard of a prompt's ids.

    Args:
        prompt: Token ids.
        context: KV slots.
        vocab_size: Ids must lie below it.
        shifts: Whether the context shifts, so that any prompt fits.

    Raises:
        GenerationError: It is empty, has an unknown id, or does not fit the context.
    """
    if not prompt:
        raise GenerationError("the prompt has no tokens", hint="give some text")
    unknown = [token_id for token_id in prompt if not 0 <= token_id < vocab_size]
    if unknown:
        raise GenerationError(
            "token id outside the vocabulary",
            expected=f"below {vocab_size}",
            found=unknown[0],
        )
    if len(prompt) > context and not shifts:
        raise GenerationError(
            "the prompt is longer than the context",
            expected=f"at most {context} tokens",
            found=f"{len(prompt)} tokens",
            hint="shorten it, load the model with a larger context, or let the context shift",
        )


def no_room(longest: int, found: int) -> GenerationError:
    """Return the error of a prompt after which no token fits."""
    return GenerationError(
        "the prompt leaves no room in the context",
        expected=f"at most {longest} tokens",
        found=f"{found} tokens",
        hint="shorten it, load the model with a larger context, or let the context shift",
    )
