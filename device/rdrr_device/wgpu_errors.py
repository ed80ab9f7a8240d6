"""The errors of wgpu as this project's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rdrr_format.errors import DeviceError


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn the errors of wgpu into `DeviceError`; its messages span lines.

    Those of promises, a pipeline or a map that failed, are of the type `RuntimeError`.
    """
    import wgpu

    try:
        yield
    except (wgpu.GPUError, RuntimeError) as error:
        raise DeviceError(f"{what} failed", found=str(error)) from error
