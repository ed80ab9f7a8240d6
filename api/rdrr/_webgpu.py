"""The option `webgpu`: through which implementation of WebGPU a device is opened.

`rdrr tune --compare-webgpu` measures a package through each of them and keeps the faster one for
the adapter, in the folder `webgpu` of the user's cache, where `auto` finds it. Like a tuned profile
it is used only with the kernels, and the versions of the implementations, that were measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.stores import replace_file, store_errors
from rdrr_format.user_folders import cache_folder

from rdrr._tuned import file_name

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_device.device import Device
    from rdrr_device.implementations.interface import WebGpuName

    from rdrr._load_options import WebGpuChoice

FORMAT = "rdrr-webgpu-1"
FOLDER = "webgpu"

GAIN = 0.02
"""Share of the time that the other implementation must save to be preferred to wgpu."""

UNMEASURED = "the default; `rdrr tune --compare-webgpu` compares it with Dawn (auto)"
"""Why wgpu is used on an adapter on which nothing was compared."""


@dataclass(frozen=True)
class WebGpuDecision:
    """An implementation and why it is used.

    Attributes:
        name: The implementation.
        reason: Why.
    """

    name: WebGpuName
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Compared:
    """What was measured on an adapter.

    Attributes:
        model: Model id of the package.
        seconds: Seconds of a prompt and new tokens with each implementation.
    """

    model: str
    seconds: Mapping[str, float]

    @property
    def decision(self) -> WebGpuDecision:
        """The implementation to prefer: wgpu unless the other one is faster by `GAIN`."""
        wgpu, dawn = self.seconds["wgpu"], self.seconds["dawn"]
        is_faster = dawn < (1 - GAIN) * wgpu
        ours, other = (dawn, wgpu) if is_faster else (wgpu, dawn)
        reason = f"{ours:.3g} s, the other one {other:.3g} s, for {self.model} (measured, auto)"
        return WebGpuDecision("dawn" if is_faster else "wgpu", reason)


def decide(choice: WebGpuChoice, adapter: str | None) -> WebGpuDecision:
    """Return the implementation to use, and why.

    Args:
        choice: The option.
        adapter: Part of an adapter's name; the best adapter when None.

    Raises:
        DeviceError: A preference is kept for some adapter, and there is none, or none that matches.
    """
    from rdrr_device.adapters import choose

    if choice != "auto":
        return WebGpuDecision(choice, f"`webgpu` is {choice}")
    if not any((cache_folder() / FOLDER).glob("*.json")):
        return WebGpuDecision("wgpu", UNMEASURED)
    return preferred(choose("wgpu", adapter))


def preferred(info: AdapterInfo) -> WebGpuDecision:
    """Return the implementation that `auto` takes on an adapter, and why."""
    from rdrr_device.implementations import is_installed

    compared = _read(info)
    if compared is None:
        return WebGpuDecision("wgpu", UNMEASURED)
    if compared.decision.name == "dawn" and not is_installed("dawn"):
        return WebGpuDecision("wgpu", "Dawn was faster, but is not installed any more (auto)")
    return compared.decision


def choose_adapter(
    adapter: str | None, choice: WebGpuChoice = "auto", *, hardware_only: bool = False
) -> AdapterInfo:
    """Return the adapter to use, found by the implementation that the option `webgpu` means.

    Args:
        adapter: Part of an adapter's name; the best adapter when None.
        choice: The option.
        hardware_only: Refuse a software adapter.

    Raises:
        DeviceError: There is no adapter, or none matches.
        UsageError: The implementation is not installed.
    """
    from rdrr_device.adapters import choose

    return choose(decide(choice, adapter).name, adapter, hardware_only=hardware_only)


def open_device(adapter: str | None, choice: WebGpuChoice = "auto") -> Device:
    """Open a device on the adapter of `choose_adapter`.

    Raises:
        DeviceError: There is no adapter, none matches, or the adapter does not open a device.
        UsageError: The implementation is not installed.
    """
    from rdrr_device import device

    return device.open_device(adapter, webgpu=decide(choice, adapter).name)


def keep(info: AdapterInfo, compared: Compared) -> Path:
    """Keep what was measured on an adapter, and return the file.

    Raises:
        StoreError: The folder cannot be written.
    """
    path = _path(info)
    data = {"for": _key(info), "model": compared.model, "seconds": dict(compared.seconds)}
    with store_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(data, indent=1) + "\n").encode())
    return path


def _path(info: AdapterInfo) -> Path:
    # Implementations describe the driver in words of their own, so it is no part of the name.
    return cache_folder() / FOLDER / file_name(info.name, {"name": info.name})


def _key(info: AdapterInfo) -> dict[str, Any]:
    """Return what a comparison depends on."""
    from rdrr_runtime.phases.phase import FOLDER as KERNELS

    versions = {name: _version(name) for name in ("wgpu", "wgpudawn")}
    return {"format": FORMAT, "adapter": info.name, "kernels": KERNELS.digest(), **versions}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _read(info: AdapterInfo) -> Compared | None:
    try:
        data = json.loads(_path(info).read_text(encoding="utf-8"))
        key = {**_key(info), "wgpudawn": data["for"]["wgpudawn"]}
        seconds = {name: float(data["seconds"][name]) for name in ("wgpu", "dawn")}
        current = data["for"] == key and _version("wgpudawn") in ("", key["wgpudawn"])
        return Compared(str(data["model"]), seconds) if current else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it is only a cache
