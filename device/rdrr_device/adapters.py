"""Which adapters this machine offers, and which one to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdrr_format.errors import DeviceError

NO_ADAPTER_HINT = (
    "install a Vulkan driver (Debian's software one: apt-get install mesa-vulkan-drivers) "
    "or use `backend` cpu"
)

LIST_HINT = "see `rdrr devices`"


@dataclass(frozen=True)
class AdapterInfo:
    """One adapter as `rdrr devices` shows it.

    Attributes:
        name: The device's name.
        backend: Vulkan, Metal, D3D12 or OpenGL.
        type: DiscreteGPU, IntegratedGPU, CPU or Unknown.
        driver: The driver's own description.
        features: WebGPU features on offer.
        limits: WebGPU limits on offer, by name with dashes.
        software: Whether the CPU does the work.
    """

    name: str
    backend: str
    type: str
    driver: str
    features: frozenset[str]
    limits: Mapping[str, int]
    software: bool
    handle: Any = field(default=None, repr=False, compare=False)


def list_adapters() -> list[AdapterInfo]:
    """Every adapter, best first: discrete before integrated before software, OpenGL last.

    Raises:
        DeviceError: The wgpu package cannot be loaded.
    """
    try:
        import wgpu
    except (ImportError, OSError) as error:
        raise DeviceError(
            "the package wgpu cannot be loaded",
            found=error,
            hint="use the CPU: `backend` cpu, or `device` cpu for a conversion",
        ) from None
    found = [_describe(adapter) for adapter in wgpu.gpu.enumerate_adapters_sync()]
    return sorted(found, key=_preference)


def find_adapter(adapters: Sequence[AdapterInfo], name: str) -> AdapterInfo | None:
    """Return the first adapter whose name, backend or driver contains `name`, OpenGL last."""
    wanted = name.lower()
    for one in [*_usable(adapters), *adapters]:
        if wanted in f"{one.name} {one.backend} {one.driver}".lower():
            return one
    return None


def choose_adapter(adapters: Sequence[AdapterInfo], name: str | None = None) -> AdapterInfo:
    """Return the first adapter, or the first whose name, backend or driver contains `name`.

    Raises:
        DeviceError: There is none, or none is called so.
    """
    usable = _usable(adapters)
    if not usable:
        raise DeviceError("no WebGPU adapter on this machine", hint=NO_ADAPTER_HINT)
    if name is None:
        return usable[0]
    found = find_adapter(adapters, name)
    if found is None:
        raise DeviceError("no such adapter", expected=names(adapters), found=name, hint=LIST_HINT)
    return found


def names(adapters: Sequence[AdapterInfo]) -> str:
    """Return the names to choose from, for messages."""
    return " or ".join(dict.fromkeys(one.name for one in _usable(adapters)))


def _usable(adapters: Sequence[AdapterInfo]) -> list[AdapterInfo]:
    """Return the adapters without those of OpenGL, unless there are no others."""
    return [one for one in adapters if one.backend != "OpenGL"] or list(adapters)


def _describe(adapter: Any) -> AdapterInfo:
    info = adapter.info
    kind = str(info["adapter_type"])
    return AdapterInfo(
        name=str(info["device"]),
        backend=str(info["backend_type"]),
        type=kind,
        driver=str(info["description"]),
        features=frozenset(adapter.features),
        limits=dict(adapter.limits),
        software=kind == "CPU",
        handle=adapter,
    )


def _preference(one: AdapterInfo) -> tuple[bool, int, str]:
    order = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "Unknown": 3, "CPU": 4}
    return one.backend == "OpenGL", order.get(one.type, 3), one.name
