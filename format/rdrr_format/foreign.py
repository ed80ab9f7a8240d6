"""Translate the errors of libraries written in Rust, including panics, to errors of this project.

A panic reaches Python as an exception that `except Exception` does not catch. By then the library
has already written a line to the standard error of the process, which cannot be suppressed without
suppressing the output of other threads as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rdrr_format.errors import RdrrError

Refusal = Callable[[str], RdrrError]
"""Makes an error of this project from the library's message."""


def is_panic(error: BaseException) -> bool:
    """Return whether an exception is a panic of a library written in Rust."""
    kind = type(error)
    return kind.__module__ == "pyo3_runtime" and kind.__name__ == "PanicException"


@contextmanager
def foreign_errors(refusal: Refusal) -> Iterator[None]:
    """Translate whatever a library raises in a `with` block.

    Args:
        refusal: Makes the error from the library's message.

    Raises:
        RdrrError: The library raised something, or panicked.
    """
    try:
        yield
    except RdrrError:
        raise
    except Exception as error:
        raise refusal(_message(error)) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise refusal(f"the library panicked: {_message(error)}") from None


def _message(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
