"""Which backend runs a package, why, and how to get the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from rdrr_format.errors import DeviceError, UsageError

from rdrr._configuration import configured_hints
from rdrr._load_options import LoadOptions
from rdrr._memory_limit import refuse_beyond_limit
from rdrr._tuned import read_profile

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.compile.hints import Policy

AnyBackend = TypeVar("AnyBackend", bound="Backend")

_CPU_SERVES: Mapping[str, str] = MappingProxyType(
    {"q4kMatmul": "dequant_f32", "computePrecision": "f32"}
)
"""The only value of a hint that torch computes as it says; other keys mean nothing to it."""


@dataclass(frozen=True)
class OpenedBackend:
    """An opened backend.

    Attributes:
        backend: The loaded model.
        reason: Which one it is, why, and how to get the other, in one line.
        unhonoured: A line for each hint that it does not follow.
        device: What it runs on, if that is a GPU.
        verify: How its shards were checked; those of a draft model are checked so too.
        unchecked: A line for what could not be checked.
    """

    backend: Backend
    reason: str
    unhonoured: tuple[str, ...]
    device: Device | None = None
    verify: str = "cached"
    unchecked: tuple[str, ...] = ()

    def close(self) -> None:
        """Free the model, then the device it ran on."""
        self.backend.close()
        if self.device is not None:
            self.device.close()


def resolve_hints(package: Package, given: Mapping[str, str]) -> Policy:
    """The hints of a run: its own flags over the user's configuration over the manifest.

    Raises:
        UsageError: An unknown hint or value.
    """
    from rdrr_manifests.models import HINT_VALUES
    from rdrr_runtime.compile.hints import resolve

    manifest = package.manifest.kernel_hints.model_dump(by_alias=True)
    return resolve(
        {
            "run flag": given,
            "runtime configuration": configured_hints(),
            "manifest": {key: manifest[key] for key in HINT_VALUES},
        }
    )


def open_backend(
    package: Package,
    policy: Policy,
    options: LoadOptions,
    *,
    context: int,
) -> OpenedBackend:
    """Load a package on the backend that was asked for, or with `auto` on the best there is.

    Args:
        package: What to load.
        policy: Its kernel hints, from `resolve_hints`.
        options: Backend, adapter, cache type, whether hints are strict, and how shards are checked.
        context: KV slots.

    Raises:
        UsageError: A combination that contradicts itself.
        DeviceError: No adapter (unless `auto` may fall back), too little memory, or a hint that
            is not honoured under `strict_hints`.
        ShardError: A shard has another hash than the manifest states.
    """
    backend, adapter = options.backend, options.adapter
    if backend == "cpu" and adapter:
        raise UsageError("`adapter` is only for GPUs, and the backend is cpu", found=adapter)
    if backend == "cpu" and options.max_vram is not None:
        raise UsageError(
            "`max_vram` is only for GPUs, and the backend is cpu", found=options.max_vram
        )
    device: Device | None = None
    missing: DeviceError | None = None
    if backend != "cpu":
        from rdrr_device.device import open_device

        try:
            device = open_device(adapter)
        except DeviceError as error:
            # A named adapter is a demand; only a nameless `auto` may fall back.
            if backend == "wgpu" or adapter:
                raise
            missing = error
    if device is None:
        return _cpu(package, policy, options, context, missing)
    return _wgpu(package, policy, device, options, context)


def open_beside(package: Package, beside: OpenedBackend) -> Backend:
    """Load another package on the device of one that is loaded, with as large a context.

    Raises:
        DeviceError: Too little memory.
        ShardError: A shard has another hash than the manifest states.
    """
    longest = package.manifest.architecture.max_seq_len
    context = min(longest, beside.backend.info.context)
    device = beside.device
    if device is None:
        from rdrr_runtime.reference.backend import CpuBackend

        return load_checked(package, beside.verify, lambda: CpuBackend(package, context=context))[0]
    from rdrr_runtime.gpu import GpuBackend

    policy = resolve_hints(package, {})
    return load_checked(
        package,
        beside.verify,
        lambda: GpuBackend(package, context=context, device=device, policy=policy),
    )[0]


def load_checked(
    package: Package, verify: str, load: Callable[[], AnyBackend]
) -> tuple[AnyBackend, tuple[str, ...]]:
    """Load a backend while its shards are checked; also return what could not be checked.

    Raises:
        ShardError: A shard has another hash than the manifest states; the backend is freed.
    """
    from rdrr_manifests.loading import checked_shards

    with ExitStack() as undo:
        with checked_shards(package, verify) as unchecked:
            backend = load()
            undo.callback(backend.close)
        undo.pop_all()
    return backend, unchecked


def _wgpu(
    package: Package,
    policy: Policy,
    device: Device,
    options: LoadOptions,
    context: int,
) -> OpenedBackend:
    from rdrr_runtime.compile.decision import unhonoured
    from rdrr_runtime.exec.plan import decisions_for
    from rdrr_runtime.gpu import GpuBackend

    stored = read_profile(device.info)
    tuning, kv_dtype = stored.tuning, options.kv_dtype
    try:
        # Before any weight is read: a large model takes a while to load.
        if options.strict_hints:
            _refuse(unhonoured(decisions_for(package, device, policy, context, kv_dtype, tuning)))
        refuse_beyond_limit(package, device, policy, options, context=context, tuning=tuning)
        model, unchecked = load_checked(
            package,
            options.verify,
            lambda: GpuBackend(
                package,
                context=context,
                kv_dtype=kv_dtype,
                device=device,
                policy=policy,
                tuning=tuning,
            ),
        )
    except BaseException:
        device.close()
        raise
    kind = ", a software adapter" if device.info.software else ""
    where = f"{device.info.name} ({device.info.backend}{kind})"
    reason = f"backend wgpu on {where}; `backend` cpu runs it in torch{stored.remark}"
    return OpenedBackend(
        model, reason, unhonoured(model.info.decisions), device, options.verify, unchecked
    )


def _cpu(
    package: Package,
    policy: Policy,
    options: LoadOptions,
    context: int,
    missing: DeviceError | None,
) -> OpenedBackend:
    from rdrr_runtime.reference.backend import CpuBackend

    unhonoured = _unhonoured_on_cpu(policy)
    if options.strict_hints:
        _refuse(unhonoured)
    model, unchecked = load_checked(
        package, options.verify, lambda: CpuBackend(package, context=context)
    )
    reason = "backend cpu (torch); `backend` wgpu runs it on a GPU"
    if missing is not None:
        reason = f"backend cpu (torch), because there is {missing.message}; for the wgpu backend "
        reason += missing.hint or "see `rdrr devices`"
    return OpenedBackend(model, reason, unhonoured, None, options.verify, unchecked)


def _unhonoured_on_cpu(policy: Policy) -> tuple[str, ...]:
    return tuple(
        f"hint {hint.key}={hint.value} is not honoured: torch on the CPU "
        f"{_cpu_serves(hint.key)} (set by the {hint.source})"
        for hint in policy.hints.values()
        if hint.value != _CPU_SERVES.get(hint.key)
    )


def _cpu_serves(key: str) -> str:
    return f"serves {_CPU_SERVES[key]}" if key in _CPU_SERVES else "has one way to compute it"


def _refuse(lines: tuple[str, ...]) -> None:
    if lines:
        raise DeviceError(lines[0], hint="omit `strict_hints` to run it all the same")
