"""The errors of wgpu as this project's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rdrr_format.errors import DeviceError

_LOST = "device is lost", "device lost"
"""What wgpu's messages say in any case of letters once a device is gone."""


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn the errors of wgpu into `DeviceError`; its messages span lines.

    Those of promises, a pipeline or a map that failed, are of the type `RuntimeError`.
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
    """The error of a device that is gone: nothing can be done with it but to close it.

    Args:
        what: What was being done.
    """
    return DeviceError(
        f"the GPU device was lost while {what}",
        hint="its driver was reset, or it was removed or closed; close the model and load it again",
    )
