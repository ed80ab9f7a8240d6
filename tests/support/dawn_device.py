"""Devices on Dawn in this process, through wgpudawn (the extra `dawn`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from rdrr_device.device import Device, open_device
from rdrr_device.implementations import is_installed
from support.dawn import FOLDER, NOT_SET_UP, is_set_up


def why_no_dawn() -> str | None:
    """Return why no device on Dawn can be opened here; None if one may be."""
    if not is_installed("dawn"):
        return "the package wgpudawn is not installed"
    return None if is_set_up() else NOT_SET_UP


@contextmanager
def driver_of_dawn() -> Iterator[None]:
    """Let Dawn look for adapters with the driver of `.dawn`; wgpu keeps those that it has found."""
    with pytest.MonkeyPatch.context() as patch:
        if is_set_up():
            patch.setenv("VK_DRIVER_FILES", str(FOLDER / "driver.json"))
        yield


def open_dawn_device(
    without: frozenset[str] = frozenset(), limits: Mapping[str, int] | None = None
) -> Device:
    """Open a device on Dawn, see `rdrr_device.device.open_device`."""
    with driver_of_dawn():
        return open_device(webgpu="dawn", without=without, limits=limits)
