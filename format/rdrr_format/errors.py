"""The one tree of errors that every component raises and that the commands print.

    RdrrError
    ├── UsageError         an option or argument is wrong (exit code 2)
    ├── FormatError        bytes that do not follow the format
    │   └── ShardError     a shard that is missing, too short or has another hash
    ├── StoreError         a path or URL that cannot be read or written
    ├── ManifestError      a manifest that cannot be understood; carries every fault found
    ├── SourceError        a checkpoint that cannot be read
    ├── ConversionError    a checkpoint that was read but cannot be packaged as asked
    ├── DeviceError        no adapter, or the adapter lacks what is needed
    └── GenerationError    a prompt or an option that the model cannot serve

A message always fits on one line: what is wrong, where, what was expected, what was found and what
to do about it. Messages and their parts are printable and shorter than 2,000 characters, whatever
the input holds. Tracebacks are for bugs, not for bad input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rdrr_format.printing import printable, shortened

MAX_WHERE, MAX_EXPECTED, MAX_FOUND, MAX_LINE = 600, 900, 300, 1900
"""Maximum lengths in characters of `where`, `expected`, `found` and a whole message."""

MAX_WORDS = 900
"""Maximum length of what is wrong and of the hint, which may repeat a key of a file."""


class RdrrError(Exception):
    """Base of all errors that a user can cause.

    Args:
        message: What is wrong, in a few words.
        where: File, tensor or field path that is wrong.
        expected: What would have been right.
        found: What was found instead.
        hint: What the user can do about it.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        where: object = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        self.message = shortened(message, MAX_WORDS)
        self.where = _fact(where, MAX_WHERE)
        self.expected = _fact(expected, MAX_EXPECTED)
        self.found = _fact(found, MAX_FOUND)
        self.hint = _fact(hint, MAX_WORDS)
        super().__init__(self.line())

    def line(self) -> str:
        """Return the whole message on one line."""
        text = f"{self.where}: {self.message}" if self.where else self.message
        facts = [
            f"{label} {value}"
            for label, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        if facts:
            text += f" ({', '.join(facts)})"
        if self.hint:
            text += f"; {self.hint}"
        return shortened(printable(" ".join(text.split())), MAX_LINE)

    def as_dict(self) -> dict[str, Any]:
        """Return the parts of the message as an object, for `--json`."""
        facts = {
            "error": type(self).__name__,
            "message": self.message,
            "where": self.where,
            "expected": self.expected,
            "found": self.found,
            "hint": self.hint,
        }
        return {key: value for key, value in facts.items() if value is not None}


def _fact(value: object, max_length: int) -> str | None:
    return None if value is None else shortened(_text(value), max_length)


def _text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to print an integer of more than 4,300 digits
        return f"a {type(value).__name__} too long to show"


class UsageError(RdrrError):
    """An option, an argument or a combination of them is wrong."""

    exit_code = 2


class FormatError(RdrrError):
    """Bytes or sizes that do not follow the format."""


class ShardError(FormatError):
    """A shard is missing, shorter than declared, or has another hash."""


class StoreError(RdrrError):
    """A path or URL cannot be read or written, for example because it is missing or full."""


class ManifestError(RdrrError):
    """A manifest cannot be understood.

    Args:
        message: What is wrong, in a few words.
        faults: Every fault found, as objects with a method `line()` (see `rdrr_manifests.rules`).
        where: The manifest's path.
        hint: What the user can do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        faults: Sequence[Any] = (),
        where: object = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        self.faults = tuple(faults)
        super().__init__(message, where=where, expected=expected, found=found, hint=hint)


class SourceError(RdrrError):
    """A checkpoint cannot be read: it is truncated, lacks a tensor, or is not a checkpoint."""


class ConversionError(RdrrError):
    """A checkpoint was read but cannot be packaged as asked.

    Attributes:
        options: Options with which the same conversion goes on all the same, if there are any.
    """

    OFFER = "to go on all the same, "

    options: Mapping[str, str | tuple[str, ...]] = MappingProxyType({})

    def offer(self, **options: str | tuple[str, ...]) -> None:
        """Add to the hint that the conversion goes on with more options."""
        self.options = MappingProxyType({key: value for key, value in options.items() if value})
        words = [
            f"{name}={value!r}" if isinstance(value, str) else f"{name}={list(value)!r}"
            for name, value in self.options.items()
        ]
        self.hint = f"{self.hint}; {self.OFFER}add {', '.join(words)}"
        self.args = (self.line(),)


class DeviceError(RdrrError):
    """There is no adapter, or it lacks a feature or limit that is needed.

    Attributes:
        need: Bytes of memory that a model needs, if they are more than it may take; else 0.
    """

    need: int = 0


class GenerationError(RdrrError):
    """The model cannot serve a prompt or an option of a generation."""
