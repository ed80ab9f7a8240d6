"""Errors of libraries written in Rust, panics among them, as errors of ours.

A panic reaches Python as an exception that `except Exception` lets through. The library has
written a line about it to the process's standard error by then, which cannot be kept from there
without keeping the lines of other threads too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rdrr_format.errors import RdrrError

Refusal = Callable[[str], RdrrError]
"""Makes the error from what the library said."""


def is_panic(error: BaseException) -> bool:
    """Return whether an exception stands for a panic of a library written in Rust."""
    kind = type(error)
    return kind.__module__ == "pyo3_runtime" and kind.__name__ == "PanicException"


@contextmanager
def foreign_errors(refusal: Refusal) -> Iterator[None]:
    """Turn whatever a library raises in a block into an error of ours.

    Args:
        refusal: Makes the error.

    Raises:
        RdrrError: The library raised something, or panicked.
    """
    try:
        yield
    except RdrrError:
        raise
    except Exception as error:
        raise refusal(_said(error)) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise refusal(f"the library panicked: {_said(error)}") from None


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
