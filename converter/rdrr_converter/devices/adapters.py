"""Choosing the adapter that encodes blocks.

The choice follows `rdrr_device.adapters` with one exception: a software adapter is used only if it
is named, because it encodes more slowly than the codecs on the CPU.
"""

from __future__ import annotations

from rdrr_device.adapters import (
    LIST_HINT,
    AdapterInfo,
    choose_adapter,
    find_adapter,
    list_adapters,
    names,
)
from rdrr_device.implementations.interface import WebGpuName
from rdrr_format.errors import DeviceError, UsageError

CPU_HINT = "use `device` cpu, or name a software adapter with `adapter`"


def choose(name: str | None, webgpu: WebGpuName = "wgpu") -> AdapterInfo:
    """Choose the best hardware adapter, or the best one whose name or driver contains `name`.

    Raises:
        UsageError: No name or driver contains `name`, or the implementation is not installed.
        DeviceError: No name is given, and only software adapters were found.
    """
    adapters = list_adapters(webgpu)
    if name is None:
        hardware = [info for info in adapters if not info.software]
        if hardware:
            return choose_adapter(hardware)
        raise DeviceError(
            f"`device` {webgpu} finds no GPU",
            expected="a hardware adapter",
            found=names(adapters) or "none",
            hint=CPU_HINT,
        )
    adapter = find_adapter(adapters, name)
    if adapter is None:
        raise UsageError("no such adapter", expected=names(adapters), found=name, hint=LIST_HINT)
    return adapter
