"""What every parser must return for a case: a result or one short printable `RdrrError`."""

from __future__ import annotations

import re

from fuzz.readers import Reader, check_line
from rdrr_format.errors import RdrrError

ACCEPTED = "accepted"

MOST = 2000
"""Largest number of characters of a message and of each part of it."""


class Finding(Exception):  # noqa: N818 - not an error of the tests
    """A parser misbehaved on a case."""


def judge(reader: Reader, case: bytes) -> str:
    """Run a reader on a case and return the outcome: `accepted`, or the refusal without details.

    Raises:
        Finding: The outcome is anything else; the cause is what the parser raised.
    """
    try:
        reader(case)
    except RdrrError as error:
        try:
            _check(error)
        except AssertionError as fault:
            raise Finding(str(fault)) from error
        return _outcome(error)
    except BaseException as error:  # panics of extension modules are not Exceptions
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Finding(f"{type(error).__name__}: {str(error)[:300]!a}") from error
    return ACCEPTED


def _check(error: RdrrError) -> None:
    check_line(str(error))
    for part in error.as_dict().values():
        if len(part) >= MOST:
            raise AssertionError(f"a part of {len(part)} characters: {part[:300]!a}")


def _outcome(error: RdrrError) -> str:
    """Return the class and the words of an error in a form that fits a file name."""
    rules = sorted({fault.rule for fault in getattr(error, "faults", ())})
    words = re.sub(r"[^a-z]+", "-", " ".join(rules[:2]) or error.message.lower())
    return f"{type(error).__name__}-{words[:40].strip('-')}"
