"""The choice of the backend that runs a package, and loading the package on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from rdrr_format.errors import DeviceError, RdrrError, UsageError
from rdrr_format.extras import import_extra, install_hint

from rdrr._configuration import configured_hints
from rdrr._executor import persistence, tuned_executor
from rdrr._load_options import LoadOptions, RoundedPlace
from rdrr._memory_limit import refuse_beyond_limit
from rdrr._opening import DeviceOpening
from rdrr._tuned import read_profile

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.compile.choice.hints import Policy
    from rdrr_runtime.draft_backend import DraftHead
    from rdrr_runtime.exec.early_plan import EarlyPlan
    from rdrr_runtime.program.player import Player

AnyBackend = TypeVar("AnyBackend", bound="Backend | DraftHead | Player")

_CPU_HONOURS: Mapping[str, str] = MappingProxyType(
    {"q4kMatmul": "dequant_f32", "computePrecision": "f32"}
)
"""The values of kernel hints that the CPU backend honours; torch has no other ways to compute."""


@dataclass(frozen=True)
class OpenedBackend:
    """A loaded model and the device that it runs on.

    Attributes:
        backend: The loaded model.
        reason: One line that says which backend it is, why, and how to choose the other one.
        unhonoured: One line for each kernel hint that is not honoured.
        device: The GPU that it runs on; None on the CPU.
        verify: How its shards were checked. The shards of a draft model are checked the same way.
        unchecked: One line for each check that could not be done.
    """

    backend: Backend
    reason: str
    unhonoured: tuple[str, ...]
    device: Device | None = None
    verify: str = "cached"
    unchecked: tuple[str, ...] = ()

    def close(self) -> None:
        """Free the model, then its device."""
        self.backend.close()
        if self.device is not None:
            self.device.close()


def resolve_hints(
    package: Package, given: Mapping[str, str], rounded_weights: RoundedPlace = "shared"
) -> Policy:
    """Return the kernel hints in force, each from the first source that sets it.

    The sources are, in this order, the hints given for the run, the user's configuration, and the
    manifest of the package.

    Args:
        package: The package.
        given: The hints given for the run.
        rounded_weights: The option of this name, which no other source sets.

    Raises:
        UsageError: A hint or its value is unknown.
    """
    from rdrr_manifests.models import HINT_VALUES
    from rdrr_runtime.compile.choice.hints import resolve

    manifest = package.manifest.kernel_hints.model_dump(by_alias=True)
    stated = {
        "run flag": given,
        "runtime configuration": configured_hints(),
        "manifest": {key: manifest[key] for key in HINT_VALUES},
    }
    return replace(resolve(stated), keeps_rounded=rounded_weights == "kept")


def open_backend(
    package: Package,
    policy: Policy,
    options: LoadOptions,
    *,
    context: int,
    opening: DeviceOpening | None = None,
) -> OpenedBackend:
    """Load a package on the backend that `options` names.

    `auto` means a hardware adapter, else torch if it is installed, else a software adapter.

    Args:
        package: The package to load.
        policy: Its kernel hints, from `resolve_hints`.
        options: Backend, adapter, type of the cache, whether a hint that is not honoured is an
            error, and how shards are checked.
        context: Number of slots of the key-value cache.
        opening: The device of the options, which is being opened; opened here when None.

    Raises:
        UsageError: Two options contradict each other, or the CPU backend was asked for and torch is
            not installed.
        DeviceError: There is no adapter (`auto` falls back to the CPU where torch is installed),
            there is too little memory, or a hint is not honoured under `strict_hints`.
        ShardError: The hash of a shard differs from the one in the manifest.
    """
    backend, adapter = options.backend, options.adapter
    if backend == "cpu" and adapter:
        raise UsageError("`adapter` is only for GPUs, and the backend is cpu", found=adapter)
    if backend == "cpu" and options.webgpu != "auto":
        raise UsageError("`webgpu` is only for GPUs, and the backend is cpu", found=options.webgpu)
    if backend == "cpu" and options.max_vram is not None:
        raise UsageError(
            "`max_vram` is only for GPUs, and the backend is cpu", found=options.max_vram
        )
    if backend == "cpu" and options.executor == "persistent":
        raise UsageError("`executor` is only for GPUs, and the backend is cpu", found="persistent")
    device: Device | None = None
    missing: DeviceError | None = None
    early: EarlyPlan | None = None
    if backend != "cpu":
        opening = opening or DeviceOpening(options)
        import_module("rdrr_runtime.gpu")  # while the device is opened
        early = _planned_early(package, policy, options, context, opening)
        try:
            device = opening.take()
        except DeviceError as error:
            # Who names an adapter wants that one, so only `auto` without a name may fall back.
            if backend == "wgpu" or adapter or options.webgpu != "auto":
                raise
            missing = error
    if device is None:
        return _cpu(package, policy, options, context, missing)
    with ExitStack() as undo:
        undo.callback(device.close)
        opened = _wgpu(package, policy, device, options, context, early)
        undo.pop_all()
    return opened


def open_beside(package: Package, beside: OpenedBackend) -> Backend:
    """Load a second package on the device of a loaded one, with the same context where possible.

    Raises:
        DeviceError: There is too little memory.
        ShardError: The hash of a shard differs from the one in the manifest.
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
    """Load a backend while the shards that it reads are checked.

    Args:
        package: The package that is loaded.
        verify: How shards are checked, one of `VERIFY`.
        load: Loads the backend.

    Returns:
        The backend, and one line for each check that could not be done.

    Raises:
        ShardError: The hash of a shard differs from the one in the manifest. The backend is freed.
    """
    from rdrr_manifests.loading import checked_shards

    with ExitStack() as undo:
        with checked_shards(package, verify) as unchecked:
            backend = load()
            undo.callback(backend.close)
        undo.pop_all()
    return backend, unchecked


def _planned_early(
    package: Package,
    policy: Policy,
    options: LoadOptions,
    context: int,
    opening: DeviceOpening,
) -> EarlyPlan | None:
    """Return the plan for the device that is being opened; None if it has to be made afterwards."""
    adapter = opening.adapter()
    if adapter is None:
        return None
    from rdrr_runtime.exec.early_plan import EarlyPlan

    try:
        policy = table_policies(package, policy, options.layer_inputs)[0]
        # Tables on the host may be read from the shards, which are not being checked yet.
        if policy.keeps_tables_on_host:
            return None
        early = EarlyPlan.make(
            package,
            adapter.capabilities,
            policy,
            context=context,
            kv_dtype=options.kv_dtype,
            tuning=read_profile(adapter).tuning,
        )
        opening.build_ahead(early.plan.weights.kernels())
        early.plan.passes()
        return early
    except RdrrError:
        return None  # it is raised again in the order in which faults are looked for


def _wgpu(
    package: Package,
    policy: Policy,
    device: Device,
    options: LoadOptions,
    context: int,
    early: EarlyPlan | None,
) -> OpenedBackend:
    from rdrr_runtime.compile.choice.decision import unhonoured
    from rdrr_runtime.exec.plan import decisions_for
    from rdrr_runtime.gpu import GpuBackend

    stored = read_profile(device.info)
    tuning, kv_dtype = stored.tuning, options.kv_dtype

    def load(policy: Policy, early: EarlyPlan | None) -> tuple[GpuBackend, tuple[str, ...]]:
        # These checks come before any weight is read, because a large model takes long to load.
        if options.strict_hints:
            planned = decisions_for(package, device.capabilities, policy, context, kv_dtype, tuning)
            _refuse(unhonoured(planned))
        refuse_beyond_limit(package, device, policy, options, context=context, tuning=tuning)
        device.memory.limit = options.max_vram  # for batches and all else that is allocated later
        return load_checked(
            package,
            options.verify,
            lambda: GpuBackend(
                package,
                context=context,
                kv_dtype=kv_dtype,
                device=device,
                policy=policy,
                tuning=tuning,
                persistence=persistence(
                    device, options.executor, tuned_executor(stored, package, kv_dtype)
                ),
                early=early,
            ),
        )

    first, *others = table_policies(package, policy, options.layer_inputs)
    try:
        model, unchecked = load(first, early)
    except DeviceError:
        if not others:
            raise
        model, unchecked = load(others[0], None)
    reason = f"backend wgpu on {_described(device.info, options)}{stored.remark}"
    return OpenedBackend(
        model, reason, unhonoured(model.info.decisions), device, options.verify, unchecked
    )


def _described(info: AdapterInfo, options: LoadOptions) -> str:
    """Return the adapter, why it runs the model, and what would run it instead."""
    through = " through Dawn" if info.implementation == "dawn" else ""
    software = ", a software adapter" if info.software else ""
    where = f"{info.name} ({info.backend}{through}{software})"
    if options.backend != "auto" or options.adapter or options.webgpu != "auto":
        return f"{where}; `backend` cpu runs it in torch"
    if not info.software:
        return f"{where}, the best hardware adapter; `backend` cpu runs it in torch"
    if find_spec("torch") is None:
        return (
            f"{where}, because there is neither a GPU nor torch, which is faster: "
            + install_hint("torch")
        )
    return f"{where}, because an option is only for GPUs; `backend` cpu runs it in torch"


def table_policies(package: Package, policy: Policy, place: str) -> tuple[Policy, ...]:
    """Return the policies to try in turn, by where the inputs of each layer are.

    Args:
        package: The package.
        policy: Its kernel hints.
        place: Value of the option `layer_inputs`.
    """
    on_host = replace(policy, keeps_tables_on_host=True)
    if not package.graph.further_tables or place == "gpu":
        return (policy,)
    return (on_host,) if place == "host" else (policy, on_host)


def _cpu(
    package: Package,
    policy: Policy,
    options: LoadOptions,
    context: int,
    missing: DeviceError | None,
) -> OpenedBackend:
    _check_torch(missing)
    from rdrr_runtime.reference.backend import CpuBackend

    unhonoured = _unhonoured_on_cpu(policy)
    if options.strict_hints:
        _refuse(unhonoured)
    model, unchecked = load_checked(
        package, options.verify, lambda: CpuBackend(package, context=context)
    )
    reason = "backend cpu (torch); `backend` wgpu runs it on a GPU"
    if missing is not None:
        reason = f"backend cpu (torch): {missing.message}; for the wgpu backend "
        reason += missing.hint or "see `rdrr devices`"
    return OpenedBackend(model, reason, unhonoured, None, options.verify, unchecked)


def _check_torch(missing: DeviceError | None) -> None:
    """Check that the CPU backend can be imported; `missing` is why there is no other.

    Raises:
        DeviceError: There is no adapter either.
        UsageError: torch is not installed.
    """
    try:
        import_extra("torch", "torch", "the CPU backend")
    except UsageError as error:
        if missing is None:
            raise
        raise DeviceError(
            f"{missing.message}, and {error.message}",
            found=error.found,
            hint=f"install a Vulkan driver, or run on the CPU: {error.hint}",
        ) from None


def _unhonoured_on_cpu(policy: Policy) -> tuple[str, ...]:
    return tuple(
        f"hint {hint.key}={hint.value} is not honoured: torch on the CPU "
        f"{_ways_of_cpu(hint.key)} (set by the {hint.source})"
        for hint in policy.hints.values()
        if hint.value != _CPU_HONOURS.get(hint.key)
    )


def _ways_of_cpu(key: str) -> str:
    return f"serves {_CPU_HONOURS[key]}" if key in _CPU_HONOURS else "has one way to compute it"


def _refuse(lines: tuple[str, ...]) -> None:
    if lines:
        raise DeviceError(lines[0], hint="omit `strict_hints` to run it all the same")
