"""Checks of arguments from Python callers: prompts, token ids, and stop strings.

Python treats a string as a sequence of letters, so a single string where a list is expected would
silently mean something else. These functions decide what each type means and refuse the rest.
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
        encode: Returns the token ids of a text.

    Raises:
        UsageError: The prompt is neither text nor token ids.
    """
    if isinstance(prompt, str):
        return encode(prompt)
    return token_ids(prompt, "the prompt", expected="text or token ids")


def token_ids(given: Any, name: str, *, expected: str = "token ids") -> list[int]:
    """Return token ids as a list, without checking them against the vocabulary.

    Args:
        given: The ids.
        name: What the ids are, for messages.
        expected: What may be given, for messages.

    Raises:
        UsageError: `given` is not an iterable of whole numbers.
    """
    if isinstance(given, _BYTES):
        raise UsageError(
            f"{name} is a bytes object",
            expected="a string or token ids",
            hint='decode it first: prompt.decode("utf-8")',
        )
    for token_id in (ids := _items(given, name, expected)):
        check_count(f"an id of {name}", token_id, minimum=_LOWEST, maximum=_HIGHEST)
    return [int(token_id) for token_id in ids]


def prompts(given: Any) -> list[Any]:
    """Return the prompts of a batch as a list.

    Raises:
        UsageError: `given` is a single string, or is not iterable.
    """
    return _items(given, "`prompts`", "a list of prompts")


def text_list(given: Any) -> list[str]:
    """Return texts as a list; a single string is one text.

    Raises:
        UsageError: `given` is neither a string nor an iterable of strings.
    """
    texts = [given] if isinstance(given, str) else _items(given, "`texts`", "strings")
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(
                "`texts` has an item that is not a string", expected="strings", found=shown(text)
            )
    return texts


def stop_strings(given: Any) -> tuple[str, ...]:
    """Return the stop strings as a tuple; a single string is one stop string.

    Raises:
        UsageError: `given` is neither a string nor an iterable of strings.
    """
    strings = (given,) if isinstance(given, str) else tuple(_items(given, "`stop`", "strings"))
    for text in strings:
        if not isinstance(text, str):
            raise UsageError(
                "`stop` has an item that is not a string", expected="strings", found=shown(text)
            )
    return strings


def _items(given: Any, name: str, expected: str) -> list[Any]:
    if isinstance(given, (str, *_BYTES)) or not isinstance(given, Iterable):
        raise UsageError(f"{name} has the wrong type", expected=expected, found=shown(given))
    return list(given)
