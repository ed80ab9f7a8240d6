"""List the WebGPU adapters of this machine and choose one of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from rdrr_format.errors import DeviceError

from rdrr_device.capabilities import (
    DEFAULT_LANGUAGE,
    DEFAULT_LIMITS,
    WANTED_FEATURES,
    Capabilities,
    MatrixShape,
)
from rdrr_device.implementations import implementation
from rdrr_device.implementations.interface import Implementation, WebGpuName

DRIVER_HINT = "install a Vulkan driver (Debian's software one: apt-get install mesa-vulkan-drivers)"

NO_ADAPTER_HINT = f"{DRIVER_HINT} or use `backend` cpu"
"""The hint for calls that a backend without an adapter can answer too."""

LIST_HINT = "see `rdrr devices`"

_CHOOSING = Lock()
"""Held until the other adapters are dropped: wgpu aborts if two threads drop OpenGL's at once."""


@dataclass(frozen=True)
class AdapterInfo:
    """One adapter as `rdrr devices` shows it.

    Attributes:
        name: Name of the device.
        backend: Vulkan, Metal, D3D12 or OpenGL.
        type: DiscreteGPU, IntegratedGPU, VirtualGPU, CPU or Unknown.
        driver: The driver's description of itself.
        features: WebGPU features that the adapter supports, by their names in wgpu.
        limits: WebGPU limits that the adapter supports, by name with dashes.
        software: Whether it is a software implementation that runs on the CPU.
        handle: The `GPUAdapter`.
        vendor: The adapter's vendor.
        subgroup_sizes: Fewest and most invocations of a subgroup; None if it is not known.
        language: WGSL language features.
        matrices: Shapes of the products that a subgroup multiplies at once.
        implementation: Name of the implementation of WebGPU that found it.
        aliased_writes: Whether a dispatch may bind a buffer twice if it writes to it.
    """

    name: str
    backend: str
    type: str
    driver: str
    features: frozenset[str]
    limits: Mapping[str, int]
    software: bool
    handle: Any = field(default=None, repr=False, compare=False)
    vendor: str = ""
    subgroup_sizes: tuple[int, int] | None = None
    language: frozenset[str] = DEFAULT_LANGUAGE
    matrices: tuple[MatrixShape, ...] = ()
    implementation: WebGpuName = "wgpu"
    aliased_writes: bool = True

    @property
    def capabilities(self) -> Capabilities:
        """What a device can do that is opened on the adapter without other wishes."""
        return Capabilities(
            features=WANTED_FEATURES & self.features,
            limits={name: self.limits[name] for name in DEFAULT_LIMITS if name in self.limits},
            language=self.language,
            subgroup_sizes=self.subgroup_sizes,
            matrices=self.matrices,
            vendor=self.vendor,
            software=self.software,
        )


def described_adapter(capabilities: Capabilities, name: str) -> AdapterInfo:
    """Return an adapter that is not at hand, under the name of its description."""
    return AdapterInfo(
        name=name,
        backend="described",
        type="CPU" if capabilities.software else "Unknown",
        driver="",
        features=capabilities.features,
        limits=capabilities.limits,
        software=capabilities.software,
        vendor=capabilities.vendor,
        subgroup_sizes=capabilities.subgroup_sizes,
        language=capabilities.language,
        matrices=capabilities.matrices,
    )


def list_adapters(webgpu: WebGpuName = "wgpu") -> list[AdapterInfo]:
    """Return every adapter, best first: discrete, then integrated, then software; OpenGL last.

    Args:
        webgpu: Name of the implementation of WebGPU.

    Raises:
        DeviceError: The package of the implementation cannot be loaded.
        UsageError: The implementation is not installed.
    """
    through = implementation(webgpu)
    with _runtime_folder():
        adapters = [_describe(adapter, through) for adapter in through.adapters()]
    return sorted(adapters, key=_preference)


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Set XDG_RUNTIME_DIR for a block, as a desktop session does.

    Without it Mesa's drivers complain on stderr, once for each adapter.
    """
    name = "XDG_RUNTIME_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        os.environ.pop(name, None)


def find_adapter(adapters: Sequence[AdapterInfo], name: str) -> AdapterInfo | None:
    """Return the first adapter whose name, backend or driver contains `name`, in any case.

    Adapters of OpenGL are considered last.
    """
    part = name.lower()
    for adapter in [*_usable(adapters), *adapters]:
        if part in f"{adapter.name} {adapter.backend} {adapter.driver}".lower():
            return adapter
    return None


def choose_adapter(adapters: Sequence[AdapterInfo], name: str | None = None) -> AdapterInfo:
    """Return the first adapter, or the first whose name, backend or driver contains `name`.

    Raises:
        DeviceError: The machine has no adapter, or none that matches `name`.
    """
    usable = _usable(adapters)
    if not usable:
        raise DeviceError("no WebGPU adapter on this machine", hint=DRIVER_HINT)
    if name is None:
        return usable[0]
    adapter = find_adapter(adapters, name)
    if adapter is None:
        raise DeviceError("no such adapter", expected=names(adapters), found=name, hint=LIST_HINT)
    return adapter


def choose(
    webgpu: WebGpuName, name: str | None = None, *, hardware_only: bool = False
) -> AdapterInfo:
    """Return the best adapter of an implementation, or the best that matches `name`.

    Args:
        webgpu: Name of the implementation of WebGPU.
        name: Part of an adapter's name, backend or driver, in any case.
        hardware_only: Refuse a software adapter.

    Raises:
        DeviceError: The machine has no adapter, or none that matches.
        UsageError: The implementation is not installed.
    """
    with _CHOOSING:
        info = _listed(webgpu, name)
    if hardware_only and info.software:
        raise DeviceError(
            f"the only adapter, {info.name}, is a software one, which is slower",
            hint="name it: `backend` wgpu",
        )
    return info


def _listed(webgpu: WebGpuName, name: str | None) -> AdapterInfo:
    """List the adapters of an implementation, and drop all but the one to use."""
    adapters = list_adapters(webgpu)
    if not adapters and webgpu == "dawn":
        raise DeviceError(
            "Dawn accepts no adapter of this machine",
            hint="install a newer driver, or use `webgpu` wgpu, which accepts older ones",
        )
    return choose_adapter(adapters, name)


def names(adapters: Sequence[AdapterInfo]) -> str:
    """Return the names of the usable adapters, joined by "or" for messages."""
    return " or ".join(dict.fromkeys(adapter.name for adapter in _usable(adapters)))


def _usable(adapters: Sequence[AdapterInfo]) -> list[AdapterInfo]:
    """Return the adapters other than OpenGL ones, or all if there are only OpenGL ones."""
    return [adapter for adapter in adapters if adapter.backend != "OpenGL"] or list(adapters)


def _describe(adapter: Any, through: Implementation) -> AdapterInfo:
    info = adapter.info
    kind = str(info["adapter_type"])
    return AdapterInfo(
        name=str(info["device"]),
        backend=str(info["backend_type"]),
        type=kind,
        driver=str(info["description"]),
        features=through.features(adapter),
        limits=dict(adapter.limits),
        software=kind == "CPU",
        handle=adapter,
        vendor=str(info["vendor"]),
        subgroup_sizes=through.subgroup_sizes(adapter),
        language=through.language,
        matrices=through.matrices(adapter),
        implementation=through.name,
        aliased_writes=through.aliased_writes,
    )


def _preference(adapter: AdapterInfo) -> tuple[bool, int, str]:
    order = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "Unknown": 3, "CPU": 4}
    return adapter.backend == "OpenGL", order.get(adapter.type, 3), adapter.name
