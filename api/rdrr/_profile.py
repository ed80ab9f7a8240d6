"""Profile a package, and return the times as JSON or as a trace that ui.perfetto.dev opens.

The trace is in the JSON trace event format: complete events (`X`) in microseconds, on one track for
the host and one for the GPU. GPU times are shifted to the clock of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import DeviceError

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.choice.hints import Policy
    from rdrr_runtime.measure.one_dispatch import OneDispatch
    from rdrr_runtime.measure.profiled import KernelTime, Profile, StepProfile

    from rdrr._load_options import ExecutorName, WebGpuChoice

DEFAULT_PROMPT = 512
_PROCESS, _HOST, _GPU = 1, 1, 2


def measure(
    package: Package,
    policy: Policy,
    *,
    adapter: str | None,
    webgpu: WebGpuChoice = "auto",
    kv_dtype: str,
    context: int,
    prompt_tokens: int | None,
    tokens: int,
    executor: ExecutorName = "auto",
) -> Profile:
    """Run a package on an adapter and measure the time of each kernel.

    Args:
        package: The package to run.
        policy: The kernel hints.
        adapter: Part of an adapter's name; the best adapter when None.
        webgpu: The implementation of WebGPU.
        kv_dtype: Data type of the key-value cache.
        context: Number of slots of the key-value cache.
        prompt_tokens: Tokens of the prompt; when None, 512 or as many as the context leaves.
        tokens: Tokens that are decoded after the prompt.
        executor: With `persistent`, the parts of a decode pass in one dispatch are measured too.

    Raises:
        DeviceError: There is no adapter, or it has no timestamps or cannot run a pass in one
            dispatch.
        UsageError: The tokens do not fit the context, or the model's decode pass does not run in
            one dispatch.
    """
    from rdrr_device.timestamps import Timer
    from rdrr_runtime.measure.profile import profile

    from rdrr._executor import persistence
    from rdrr._tuned import read_profile
    from rdrr._webgpu import open_device

    with closing(open_device(adapter, webgpu)) as device:
        Timer(device)  # fails without timestamps, before the weights are downloaded
        package.fetch()
        if prompt_tokens is None:
            prompt_tokens = min(DEFAULT_PROMPT, context - tokens)
        return profile(
            package,
            device,
            policy,
            context=context,
            kv_dtype=kv_dtype,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            tuning=read_profile(device.info).tuning,
            persistence=persistence(device, executor) if executor == "persistent" else None,
        )


def as_dict(profile: Profile) -> dict[str, Any]:
    """Return a profile as JSON values."""
    return {
        "adapter": profile.adapter.name,
        "driver": profile.adapter.driver,
        "software": profile.adapter.software,
        "copy": {
            "bytes": profile.copy_bytes,
            "gigabytes_per_second": profile.copy_bandwidth / 1e9,
        },
        "steps": [
            _step(step, profile.copy_bandwidth) for step in (profile.prefill, profile.decode)
        ],
        **({} if profile.one_dispatch is None else {"one_dispatch": _parts(profile.one_dispatch)}),
    }


def _parts(timed: OneDispatch) -> dict[str, Any]:
    return {
        "workgroups": timed.groups,
        "threads": timed.threads,
        "gpu_ms": timed.seconds * 1e3,
        "waits_ms": timed.waits * 1e3,
        "parts": [
            {"kernel": part.kernel, "phases": part.phases, "ms": part.seconds * 1e3}
            for part in timed.parts
        ],
    }


def _step(step: StepProfile, copied: float) -> dict[str, Any]:
    return {
        "step": step.name,
        "runs": step.steps,
        "token_rows": step.rows,
        "gpu_ms": step.gpu_seconds * 1e3,
        "gpu_ms_in_single_passes": step.kernel_seconds * 1e3,
        "encode_ms": step.encode_seconds * 1e3,
        "sync_ms": step.sync_seconds * 1e3,
        "kernels": [_kernel(kernel, step, copied) for kernel in step.kernels],
    }


def _kernel(kernel: KernelTime, step: StepProfile, copied: float) -> Mapping[str, Any]:
    return {
        "kernel": kernel.kernel,
        "ops": kernel.ops,
        "calls": kernel.calls,
        "total_ms": kernel.seconds * 1e3,
        "mean_us": kernel.seconds / kernel.calls * 1e6,
        "share": kernel.seconds / (step.kernel_seconds * step.steps),
        "bytes": kernel.bytes,
        "gigabytes_per_second": kernel.bandwidth / 1e9,
        "share_of_copy": kernel.bandwidth / copied,
    }


def trace(profile: Profile) -> dict[str, Any]:
    """Return a profile as a trace in the JSON trace event format.

    Raises:
        DeviceError: Nothing was measured.
    """
    if not profile.spans:
        raise DeviceError("nothing was measured", where=profile.adapter.name)
    shift = {True: profile.gpu_offset, False: 0.0}
    zero = min(span.begin + shift[span.on_gpu] for span in profile.spans)
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.group,
            "pid": _PROCESS,
            "tid": _GPU if span.on_gpu else _HOST,
            "ts": round((span.begin + shift[span.on_gpu] - zero) * 1e6, 3),
            "dur": round((span.end - span.begin) * 1e6, 3),
        }
        for span in profile.spans
    ]
    events.sort(key=lambda event: (event["tid"], event["ts"], -event["dur"]))
    names = [
        _named("process_name", _HOST, "rdrr"),
        _named("thread_name", _HOST, "CPU"),
        _named("thread_name", _GPU, f"GPU: {profile.adapter.name}"),
    ]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": thread, "args": {"name": name}}
