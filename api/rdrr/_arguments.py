"""What callers from Python give by position or keyword, checked before anything is done with it.

Where Python would take one thing for another, as the letters of a string for a list of strings,
the meaning is fixed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rdrr_format.errors import UsageError
from rdrr_format.options import check_count, shown

Prompt = str | Sequence[int]

_BYTES = (bytes, bytearray, memoryview)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def prompt_ids(prompt: Any, encode: Callable[[str], list[int]]) -> list[int]:
    """Return the token ids of a prompt.

    Args:
        prompt: Text, or token ids.
        encode: Makes ids of a text.

    Raises:
        UsageError: Neither.
    """
    return encode(prompt) if isinstance(prompt, str) else token_ids(prompt, "the prompt")


def token_ids(given: Any, name: str) -> list[int]:
    """Return token ids as a list; whether the model has them is not checked here.

    Args:
        given: The ids.
        name: What they are, for messages.

    Raises:
        UsageError: Something else.
    """
    if isinstance(given, _BYTES):
        raise UsageError(
            f"{name} is in bytes",
            expected="a string or token ids",
            hint='decode it first: prompt.decode("utf-8")',
        )
    for one in (found := _items(given, name, "token ids")):
        check_count(f"an id of {name}", one, minimum=_LOWEST, maximum=_HIGHEST)
    return [int(one) for one in found]


def prompts(given: Any) -> list[Any]:
    """Return the prompts of a batch as a list.

    Raises:
        UsageError: One string, or no list.
    """
    return _items(given, "prompts", "a list of prompts")


def stop_strings(given: Any) -> tuple[str, ...]:
    """Return the strings that end a text; one string is one of them.

    Raises:
        UsageError: Something else.
    """
    found = (given,) if isinstance(given, str) else tuple(_items(given, "stop", "strings"))
    for one in found:
        if not isinstance(one, str):
            raise UsageError("stop has something else", expected="strings", found=shown(one))
    return found


def _items(given: Any, name: str, expected: str) -> list[Any]:
    if isinstance(given, (str, *_BYTES)) or not isinstance(given, Iterable):
        raise UsageError(f"{name} has the wrong type", expected=expected, found=shown(given))
    return list(given)
