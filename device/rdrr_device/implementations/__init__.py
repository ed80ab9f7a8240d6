"""The implementations of WebGPU that a device can be opened through.

    wgpu   wgpu-native, through wgpu-py: the default, whose compiler of WGSL is naga
    dawn   Dawn, through wgpudawn (the extra `dawn`), whose compiler of WGSL is Tint

Both may be open in one process: an implementation belongs to a device. What differs between them
is behind `interface.Implementation`, and no other module imports one of the two packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from types import MappingProxyType

from rdrr_device.implementations.interface import Implementation, WebGpuName

_CLASSES: Mapping[WebGpuName, tuple[str, str, str]] = MappingProxyType(
    {
        "wgpu": ("wgpu", "rdrr_device.implementations.wgpu", "WgpuImplementation"),
        "dawn": ("wgpudawn", "rdrr_device.implementations.dawn", "DawnImplementation"),
    }
)
"""The Python package of each implementation, and the class that adapts it."""

NAMES: tuple[WebGpuName, ...] = tuple(_CLASSES)


def is_installed(name: WebGpuName) -> bool:
    """Return whether the package of an implementation is installed; it is not imported."""
    package = _CLASSES[name][0]
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a module of this name that no file contains
        return False


_LOADING = Lock()
"""Held while an implementation is loaded, which sets up its library for all devices."""


def implementation(name: WebGpuName) -> Implementation:
    """Return an implementation; its package is imported on first use.

    Raises:
        DeviceError: The package of wgpu cannot be loaded, or wgpudawn is of another version.
        UsageError: The package of another implementation is not installed.
    """
    with _LOADING:
        return _loaded(name)


@cache
def _loaded(name: WebGpuName) -> Implementation:
    _, module, title = _CLASSES[name]
    loaded: Implementation = getattr(import_module(module), title)()
    return loaded
