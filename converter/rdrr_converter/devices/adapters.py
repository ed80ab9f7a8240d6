"""Choosing the adapter that encodes blocks.

The choice among adapters is that of `rdrr_device.adapters`, but for one rule: a software adapter
encodes slower than the codecs do, so it is taken only by name.
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
from rdrr_format.errors import DeviceError, UsageError

CPU_HINT = "use `device` cpu, or name a software adapter with `adapter`"


def choose(name: str | None) -> AdapterInfo:
    """The best hardware adapter, or the best one whose name or driver contains `name`.

    Raises:
        UsageError: No adapter is called so.
        DeviceError: Only software adapters were found and none is named.
    """
    adapters = list_adapters()
    if name is None:
        hardware = [one for one in adapters if not one.software]
        if hardware:
            return choose_adapter(hardware)
        raise DeviceError(
            "`device` wgpu finds no GPU",
            expected="a hardware adapter",
            found=names(adapters) or "none",
            hint=CPU_HINT,
        )
    found = find_adapter(adapters, name)
    if found is None:
        raise UsageError("no such adapter", expected=names(adapters), found=name, hint=LIST_HINT)
    return found
