"""Make text from files safe to print on a terminal: no control characters, and a bounded length.

A terminal interprets control characters: the name of a tensor could move the cursor, overwrite
earlier output, begin a line of its own or reverse the direction of writing. Such characters are
shown as Python escapes.
"""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Return a text with its unprintable characters escaped.

    Args:
        text: The text.
        keep: Unprintable characters to leave as they are, such as line ends.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text
    )


def shortened(text: str, max_length: int) -> str:
    """Return a text cut in its middle to at most `max_length` characters."""
    if len(text) <= max_length:
        return text
    tail = max_length // 4
    return f"{text[: max_length - tail - 3]}...{text[-tail:]}"
