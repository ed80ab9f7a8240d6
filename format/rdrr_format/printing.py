"""Text of a file made fit for a terminal: no control characters, and not too much of it.

A terminal obeys what it is sent: names of tensors could move the cursor, rewrite what stands above
or turn the direction of writing. What cannot be printed is shown as Python escapes it.
"""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """A text in which characters that cannot be printed are escaped.

    Args:
        text: The text.
        keep: Characters that stay as they are, as line ends.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text
    )


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters; where it has more its end is kept too."""
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail - 3]}...{text[-tail:]}"
