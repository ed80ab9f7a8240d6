"""Opening a WebGPU adapter. The runtime has another module for it, with more to choose from."""

from __future__ import annotations

from typing import Any

from rdrr_format.errors import DeviceError, UsageError

_ORDER = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")


def open_adapter(name: str | None) -> tuple[str, Any]:
    """The best hardware adapter, or the best one whose name or driver contains `name`.

    Returns:
        The adapter's name, and a `GPUDevice`.

    Raises:
        UsageError: No adapter is called so.
        DeviceError: There is no adapter but in software, which encodes slower than the codecs do
            and is taken only by its name; or the adapter refuses a device.
    """
    try:
        import wgpu
    except (ImportError, OSError) as error:
        raise DeviceError(
            "--device wgpu needs the package wgpu", found=error, hint="use --device cpu"
        ) from None
    found = sorted(wgpu.gpu.enumerate_adapters_sync(), key=_preference)
    adapter = _choose(found, name)
    label = str(adapter.info["device"])
    try:
        return label, adapter.request_device_sync(label="rdrr convert")
    except RuntimeError as error:
        raise DeviceError("the adapter refuses a device", where=label, found=error) from error


def _choose(adapters: list[Any], name: str | None) -> Any:
    names = " or ".join(dict.fromkeys(str(one.info["device"]) for one in adapters))
    if name is not None:
        for one in adapters:
            if name.lower() in f"{one.info['device']} {one.info['description']}".lower():
                return one
        raise UsageError(
            "no such adapter", expected=names or None, found=name, hint="see `rdrr devices`"
        )
    if not adapters or _kind(adapters[0]) == "CPU":
        raise DeviceError(
            "--device wgpu finds no GPU",
            expected="a hardware adapter",
            found=names or "none",
            hint="use --device cpu, or name a software adapter with --adapter",
        )
    return adapters[0]


def _preference(adapter: Any) -> tuple[bool, int]:
    """OpenGL last; of the others hardware first."""
    kind = _kind(adapter)
    rank = _ORDER.index(kind) if kind in _ORDER else _ORDER.index("Unknown")
    return adapter.info["backend_type"] == "OpenGL", rank


def _kind(adapter: Any) -> str:
    return str(adapter.info["adapter_type"])
