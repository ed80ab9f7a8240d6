"""Bounds on what the steps of a `tokenizer.json` may do to a text.

A normalizer, a decoder and a post-processor are lists of steps: replacements, prefixes, templates.
A file from a stranger can make a text grow without bound that way. The functions here compute from
the JSON description of the steps by what factor a text can grow, and refuse what goes beyond the
bounds. Nothing is tokenized here: that is `rdrr_format.bounded_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rdrr_format.errors import FormatError, UsageError

MAX_TEXT = 1 << 24
"""Largest text that is encoded or decoded, in bytes of UTF-8."""

MAX_GROWN = 1 << 26
"""Largest size in bytes of a text after the steps of a normalizer or decoder."""

MAX_GROWTH = 64
"""Largest factor by which a normalizer or a decoder may multiply the bytes of a text."""

MAX_ADDED = 1 << 16
"""Largest number of bytes or ids that may be added to a text of any length."""

MAX_STEPS = 256
"""Largest number of steps in a normalizer or a decoder."""


def normalizer_growth(state: Any) -> int:
    """Return the factor by which a normalizer can multiply the bytes of a text, rounded up.

    Args:
        state: The library's JSON description of the normalizer; None where there is none.

    Raises:
        FormatError: There are too many steps, or the text could grow too much.
    """
    return _growth(list(_steps(state)), "normalizer")


def decoder_growth(state: Any) -> int:
    """Return the factor by which a decoder can multiply the bytes of a text, rounded up.

    Args:
        state: The library's JSON description of the decoder; None where there is none.

    Raises:
        FormatError: There are too many steps, one has a regular expression, or the text could
            grow too much.
    """
    steps = list(_steps(state))
    for step in steps:
        if "Regex" in (step.get("pattern") or {}):
            raise FormatError(
                "a decoder has a regular expression", expected="none", found=step["pattern"]
            )
    return _growth(steps, "decoder")


def check_post_processor(state: Any, added: int) -> None:
    """Refuse a post-processor that adds too many ids to a text or repeats the text.

    Args:
        state: The library's JSON description of the post-processor; None where there is none.
        added: Number of special tokens that it adds to every text.

    Raises:
        FormatError: It does one of the two.
    """
    if added > MAX_ADDED:
        raise FormatError(
            "too many ids are added to every text", expected=f"at most {MAX_ADDED}", found=added
        )
    if (times := _repetitions(state)) > 1:
        raise FormatError(
            "the post-processor repeats the text", expected="once", found=f"{times} times"
        )


def check_text_size(size: int, growth: int, message: str) -> None:
    """Refuse a text that is too large, or that could be once it has grown.

    Args:
        size: Bytes of the text in UTF-8.
        growth: Factor by which its bytes may be multiplied.
        message: What the error says.

    Raises:
        UsageError: The text is too large.
    """
    limit = min(MAX_TEXT, MAX_GROWN // growth)
    if size > limit:
        raise UsageError(message, expected=f"at most {limit} bytes", found=size)


def _growth(steps: list[Mapping[str, Any]], part: str) -> int:
    if len(steps) > MAX_STEPS:
        raise FormatError(
            f"the {part} has too many steps", expected=f"at most {MAX_STEPS}", found=len(steps)
        )
    growth = 1.0
    for step in steps:
        growth *= _step_growth(step)
        if growth > MAX_GROWTH or len(step.get("prepend") or "") > MAX_ADDED:
            raise FormatError(
                f"the {part} makes texts too long", expected=f"at most {MAX_GROWTH} times"
            )
    return -int(-growth // 1)


def _step_growth(step: Mapping[str, Any]) -> float:
    """Return the factor by which one step can multiply the bytes of a text."""
    content, pattern = step.get("content"), step.get("pattern")
    if not isinstance(content, str) or not isinstance(pattern, Mapping):
        return 1.0
    inserted, replaced = len(content.encode()), len(str(pattern.get("String", "")).encode())
    # A regular expression can match the empty string between any two bytes.
    return max(1.0, inserted / replaced) if replaced else 1.0 + inserted


def _repetitions(state: Any) -> int:
    """Return how often a post-processor puts the text into its result."""
    times = 1
    for step in _steps(state):
        for kind, texts in (("single", 1), ("pair", 2)):
            template = step.get(kind)
            # A template for a pair has two sequences without repeating any.
            if isinstance(template, list):
                times *= max(1, sum("Sequence" in entry for entry in template) - texts + 1)
    return times


def _steps(state: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer, decoder or post-processor; sequences can be nested."""
    if not isinstance(state, Mapping):
        return
    inner = [state.get(key) for key in ("normalizers", "decoders", "processors")]
    if not any(inner):
        yield state
    for steps in inner:
        for step in steps or ():
            yield from _steps(step)
