"""Which backend runs a package, why, and how to get the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from rdrr_manifests.models import KernelHints
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.device import Device

BACKENDS = ("auto", "wgpu", "cpu")

SERVED: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "wgpu": {"q4kMatmul": ("fused_q4k", "fused_q4k_int8"), "computePrecision": ("f32",)},
        "cpu": {"q4kMatmul": ("dequant_f32",), "computePrecision": ("f32",)},
    }
)
"""The hint values that each backend computes as they say; other values it does not follow."""


@dataclass(frozen=True)
class Choice:
    """An opened backend.

    Attributes:
        backend: The loaded model.
        reason: Which one it is, why, and how to get the other, in one line.
        unhonoured: A line for each hint that it does not follow.
    """

    backend: Backend
    reason: str
    unhonoured: tuple[str, ...]
    device: Device | None = None

    def close(self) -> None:
        """Free the model, then the device it ran on."""
        self.backend.close()
        if self.device is not None:
            self.device.close()


def open_backend(
    package: Package,
    hints: KernelHints,
    *,
    backend: str,
    adapter: str | None,
    strict_hints: bool,
    kv_dtype: str,
    context: int,
) -> Choice:
    """Load a package on the backend that was asked for, or with `auto` on the best there is.

    Raises:
        UsageError: An unknown backend, a KV dtype it does not have, or a combination that
            contradicts itself.
        DeviceError: No adapter (unless `auto` may fall back), too little memory, or a hint that
            is not honoured under `strict_hints`.
    """
    if backend not in BACKENDS:
        raise UsageError("unknown backend", expected=" or ".join(BACKENDS), found=backend)
    if backend == "cpu" and adapter:
        raise UsageError("an adapter means nothing to the cpu backend", found=adapter)
    device: Device | None = None
    missing: DeviceError | None = None
    if backend != "cpu":
        from rdrr_runtime.device import open_device

        try:
            device = open_device(adapter)
        except DeviceError as error:
            # A named adapter is a demand; only a nameless `auto` may fall back.
            if backend == "wgpu" or adapter:
                raise
            missing = error
    if device is None:
        return _cpu(package, hints, strict_hints, context, missing)
    return _wgpu(package, hints, device, strict_hints, kv_dtype, context)


def _wgpu(
    package: Package,
    hints: KernelHints,
    device: Device,
    strict_hints: bool,
    kv_dtype: str,
    context: int,
) -> Choice:
    from rdrr_runtime.gpu import GpuBackend

    try:
        unhonoured = _unhonoured(hints, "wgpu", strict_hints)
        model = GpuBackend(
            package, context=context, kv_dtype=kv_dtype, device=device, int8=_int8(hints)
        )
    except BaseException:
        device.close()
        raise
    kind = ", a software adapter" if device.info.software else ""
    where = f"{device.info.name} ({device.info.backend}{kind})"
    reason = f"backend wgpu on {where}; --backend cpu runs it in torch"
    return Choice(model, reason, unhonoured, device)


def _cpu(
    package: Package,
    hints: KernelHints,
    strict_hints: bool,
    context: int,
    missing: DeviceError | None,
) -> Choice:
    from rdrr_runtime.cpu import CpuBackend

    unhonoured = _unhonoured(hints, "cpu", strict_hints)
    model = CpuBackend(package, context=context)
    if missing is None:
        return Choice(model, "backend cpu (torch); --backend wgpu runs it on a GPU", unhonoured)
    reason = f"backend cpu (torch), because there is {missing.message}; for the wgpu backend "
    return Choice(model, reason + (missing.hint or "see `rdrr devices`"), unhonoured)


def _int8(hints: KernelHints) -> bool | None:
    """Whether activations may be int8; None leaves it to the backend."""
    if hints.compute_precision != "auto":
        return False  # what is written is what is computed
    return {"fused_q4k": False, "fused_q4k_int8": True}.get(hints.q4k_matmul)


def _unhonoured(hints: KernelHints, backend: str, strict: bool) -> tuple[str, ...]:
    from rdrr_manifests.models import HINT_VALUES

    stated = hints.model_dump(by_alias=True)
    lines = [
        f"hint {key}={stated[key]} is not followed: the {backend} backend "
        + (f"serves {' or '.join(SERVED[backend][key])}" if key in SERVED[backend] else "chooses")
        for key in HINT_VALUES
        if stated[key] != "auto" and stated[key] not in SERVED[backend].get(key, ())
    ]
    if backend == "wgpu" and hints.q4k_matmul == "fused_q4k_int8" and _int8(hints) is False:
        lines.append(
            "hint q4kMatmul=fused_q4k_int8 is not followed: "
            f"computePrecision={hints.compute_precision} excludes int8"
        )
    if lines and strict:
        raise DeviceError(lines[0], hint="leave --strict-hints out to run all the same")
    return tuple(lines)
