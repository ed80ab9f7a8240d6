"""What a parser owes for every case: a result, or one short printable line of the error tree."""

from __future__ import annotations

import re

from fuzz.readers import Reader, check_line
from rdrr_format.errors import RdrrError

ACCEPTED = "accepted"

MOST = 2000
"""Characters of a message and of each part of it."""


class Finding(Exception):  # noqa: N818 - it is no error of the tests
    """A parser did what it must not."""


def judge(reader: Reader, case: bytes) -> str:
    """Read a case and say how it ended: `accepted`, or the refusal without its facts.

    Raises:
        Finding: It ended otherwise; the cause is what the parser raised.
    """
    try:
        reader(case)
    except RdrrError as error:
        try:
            _check(error)
        except AssertionError as fault:
            raise Finding(str(fault)) from error
        return _outcome(error)
    except BaseException as error:  # the panics of extension modules are no Exceptions
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
    """The kind and the words of an error, fit for a file's name."""
    rules = sorted({fault.rule for fault in getattr(error, "faults", ())})
    words = re.sub(r"[^a-z]+", "-", " ".join(rules[:2]) or error.message.lower())
    return f"{type(error).__name__}-{words[:40].strip('-')}"
