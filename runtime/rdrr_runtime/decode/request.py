"""The request for a generation, and the checks of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_format.errors import GenerationError

from rdrr_runtime.decode.rules import TokenRules
from rdrr_runtime.decode.strategy import Strategy
from rdrr_runtime.images.rows import SeenImages
from rdrr_runtime.sampling.params import MAX_SEED


@dataclass(frozen=True)
class Request:
    """The parameters of one generation.

    Attributes:
        prompt: Token ids.
        max_tokens: Largest number of new tokens.
        rules: How tokens are chosen, and what ends the sequence.
        keep: Number of first ids that a context shift keeps; None if the context does not shift.
        strategy: The decoding strategy.
    """

    prompt: Sequence[int]
    max_tokens: int
    rules: TokenRules
    keep: int | None
    strategy: Strategy

    def rules_after(self, shifts: int) -> TokenRules:
        """Return the rules after a number of context shifts; each shift changes the seed."""
        seed = self.rules.sampling.seed
        if not shifts or seed is None:
            return self.rules
        return replace(
            self.rules, sampling=replace(self.rules.sampling, seed=(seed + shifts) & MAX_SEED)
        )


def check_prompt(
    prompt: Sequence[int],
    *,
    context: int,
    vocab_size: int,
    shifts: bool = False,
    images: SeenImages | None = None,
) -> None:
    """Check the ids of a prompt.

    Args:
        prompt: Token ids.
        context: Slots of the key-value cache.
        vocab_size: Number of token ids of the model.
        shifts: Whether the context may shift, which makes room for a prompt of any length.
        images: The images that the model has seen, whose tokens have ids too; None for none.

    Raises:
        GenerationError: The prompt is empty, has an unknown id, or does not fit the context.
    """
    if not prompt:
        raise GenerationError("the prompt has no tokens", hint="give some text")
    others = [token_id for token_id in prompt if not 0 <= token_id < vocab_size]
    unknown = [token_id for token_id in others if images is None or not images.knows(token_id)]
    if unknown:
        raise GenerationError(
            "the prompt has a token id outside the vocabulary",
            expected=f"below {vocab_size}",
            found=unknown[0],
        )
    if others and prompt[-1] == others[-1]:
        raise GenerationError("the prompt ends with an image", hint="give some text behind it")
    if others and shifts:
        raise GenerationError(
            "the context of a prompt with images does not shift", hint="leave `context_shift` out"
        )
    if len(prompt) > context and not shifts:
        raise GenerationError(
            "the prompt is longer than the context",
            expected=f"at most {context} tokens",
            found=f"{len(prompt)} tokens",
            hint="shorten it, load the model with a larger context, or let the context shift",
        )


def no_room(longest: int, found: int) -> GenerationError:
    """Return the error for a prompt that leaves no slot for a new token."""
    return GenerationError(
        "the prompt leaves no room in the context",
        expected=f"at most {longest} tokens",
        found=f"{found} tokens",
        hint="shorten it, load the model with a larger context, or let the context shift",
    )
