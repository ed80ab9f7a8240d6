"""`rdrr devices`: the WebGPU adapters of this machine, their limits and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rdrr._units import format_size
from rdrr.cli._console import console, facts, print_json
from rdrr.cli._options import JsonFlag

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo

_LIMITS = {
    "max-buffer-size": "largest buffer",
    "max-storage-buffer-binding-size": "largest binding",
    "max-compute-workgroup-storage-size": "workgroup memory",
    "max-compute-invocations-per-workgroup": "threads in a workgroup",
}
_COUNTS = {"max-compute-invocations-per-workgroup"}


def devices(
    json: JsonFlag = False,
) -> int:
    """List the GPU adapters, through each installed implementation of WebGPU.

    The exit code is 1 if there is none.
    """
    from rdrr_device.adapters import list_adapters
    from rdrr_device.implementations import NAMES, is_installed
    from rdrr_format.errors import DeviceError

    adapters = list_adapters()
    if adapters:  # the drivers are the same ones, and Dawn warns where there is none
        others = [name for name in NAMES if name != "wgpu" and is_installed(name)]
        adapters += [info for name in others for info in list_adapters(name)]
    if json:
        print_json({"adapters": [adapter_facts(info) for info in adapters]})
        return 0 if adapters else 1
    if not adapters:
        from rdrr_device.adapters import DRIVER_HINT

        raise DeviceError("this machine has no WebGPU adapter", hint=DRIVER_HINT)
    _show(adapters)
    return 0


def adapter_facts(info: AdapterInfo) -> dict[str, Any]:
    """Return an adapter as JSON values."""
    from rdrr._executor import describe  # imports numpy, which --help needs not load
    from rdrr._webgpu import preferred

    return {
        "name": info.name,
        "webgpu": info.implementation,
        "autoTakes": asdict(preferred(info)),
        "backend": info.backend,
        "type": info.type,
        "driver": info.driver,
        "software": info.software,
        "features": sorted(info.features),
        "limits": dict(info.limits),
        "oneDispatch": describe(info),
        "capabilities": info.capabilities.as_dict(),
    }


def _show(adapters: Sequence[AdapterInfo]) -> None:
    from rdrr._executor import describe
    from rdrr._webgpu import preferred

    out = console()
    for index, info in enumerate(adapters):
        if index:
            out.print()
        kind = f"{info.type}, software" if info.software and info.type != "CPU" else info.type
        out.print(info.name, style="bold")
        rows = [("backend", f"{info.backend} ({kind})"), ("driver", info.driver)]
        rows.append(("WebGPU", info.implementation))
        if len({other.implementation for other in adapters}) > 1:
            rows.append(("auto takes", str(preferred(info))))
        rows += [
            (label, str(info.limits[name]) if name in _COUNTS else format_size(info.limits[name]))
            for name, label in _LIMITS.items()
            if name in info.limits
        ]
        rows.append(("features", ", ".join(_relevant(info.features))))
        rows.append(("token in one dispatch", describe(info)))
        out.print(facts(rows))


def _relevant(features: frozenset[str]) -> list[str]:
    """Return the features that matter here; `--json` lists all, native extensions included."""
    wanted = ("shader-f16", "subgroup", "subgroup-matrix", "timestamp-query")
    return [f"{name}: {'yes' if name in features else 'no'}" for name in wanted]
