"""Opening the WebGPU device that encodes blocks.

The choice among adapters is that of `rdrr_device.adapters`, but for one rule: a software adapter
encodes slower than the codecs do, so it is taken only by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdrr_device.adapters import (
    LIST_HINT,
    AdapterInfo,
    choose_adapter,
    find_adapter,
    list_adapters,
    names,
)
from rdrr_format.errors import DeviceError, UsageError

CPU_HINT = "use --device cpu, or name a software adapter with --adapter"


def open_adapter(name: str | None) -> tuple[str, Any]:
    """Open the best hardware adapter, or the best one whose name or driver contains `name`.

    Returns:
        The adapter's name, and a `GPUDevice`.

    Raises:
        UsageError: No adapter is called so.
        DeviceError: Only software adapters were found and none is named, or the adapter refuses a
            device.
    """
    chosen = _choose(list_adapters(), name)
    try:
        return chosen.name, chosen.handle.request_device_sync(label="rdrr convert")
    except RuntimeError as error:
        raise DeviceError("the adapter refuses a device", where=chosen.name, found=error) from error


def _choose(adapters: Sequence[AdapterInfo], name: str | None) -> AdapterInfo:
    if name is None:
        hardware = [one for one in adapters if not one.software]
        if hardware:
            return choose_adapter(hardware)
        raise DeviceError(
            "--device wgpu finds no GPU",
            expected="a hardware adapter",
            found=names(adapters) or "none",
            hint=CPU_HINT,
        )
    found = find_adapter(adapters, name)
    if found is None:
        raise UsageError("no such adapter", expected=names(adapters), found=name, hint=LIST_HINT)
    return found
