"""Translate the exceptions of wgpu into this project's `DeviceError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rdrr_format.errors import DeviceError

_LOST = "device is lost", "device lost"
"""Phrases, in lower case, of the messages of wgpu after a device was lost."""


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Raise the exceptions of wgpu within the `with` block as `DeviceError`.

    A promise that fails, such as that of a pipeline or a mapping, raises `RuntimeError`.

    Args:
        what: The operation, as in "creating buffer x", for the message.
    """
    import wgpu

    try:
        yield
    except wgpu.GPUOutOfMemoryError as error:
        raise DeviceError(
            f"the GPU is out of memory while {what}",
            found=str(error),
            hint="close other models and programs that use it, or load the model with a smaller "
            "context, with the cache in q8_0, or on the cpu backend",
        ) from error
    except (wgpu.GPUError, RuntimeError) as error:
        text = str(error)
        if any(words in text.lower() for words in _LOST):
            raise device_lost(what) from error
        raise DeviceError(f"{what} failed", found=text) from error


def device_lost(what: str) -> DeviceError:
    """Return the error of a device that is lost and can only be closed.

    Args:
        what: The operation that failed, as in "reading a buffer".
    """
    return DeviceError(
        f"the GPU device was lost while {what}",
        hint="its driver was reset, or it was removed or closed; close the model and load it again",
    )
