"""Measure one package: speed, work per token, and memory."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rdrr.bench.figures import Spread, percentile
from rdrr.bench.runs import (
    GpuTimes,
    LoadedAs,
    Run,
    Workload,
    generate,
    gpu_times,
    load,
    open_device,
)

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.gpu import GpuBackend

    from rdrr._load_options import WebGpuChoice

SCHEMA = 1
"""Version of the JSON object; it is raised when a key changes its meaning or is removed."""


@dataclass(frozen=True)
class Speed:
    """The result of `rdrr bench PATH`; the fields are the keys of its JSON object.

    Attributes:
        schema: Version of these keys.
        model: The package's model id.
        adapter: Name of the adapter.
        webgpu: Implementation of WebGPU.
        software: Whether the adapter is a software renderer on the CPU.
        prompt_tokens: Token ids of the prompt.
        tokens: New token ids of a run.
        repeat: Number of runs.
        interval: Tokens between two readbacks.
        load_ms: Time to load the model.
        first_run_ms: Time to first token of the first run, in which kernels are compiled.
        time_to_first_token_ms: Time to first token of the later runs.
        prefill_tokens_per_second: Prompt tokens divided by the time to first token.
        decode_tokens_per_second: Ids after the first divided by their time.
        ms_per_token: p50, p95 and p99 over all ids after the first; ids that were read back
            together share their time.
        gpu_prefill_ms: GPU time of the prefill; None without timestamps.
        gpu_decode_ms_per_token: GPU time of a decode pass; None without timestamps.
        host_ms_per_token: Host time of a decoded token: `upload` (writes), `encode` (recording and
            submitting), `download` (waiting for the device and copying back).
        work_per_token: Dispatches, submits, created objects, maps and bytes of a decoded token.
        weights_bytes: GPU memory of the weights.
        kv_bytes: GPU memory of the key-value cache.
        peak_gpu_bytes: Peak GPU memory of weights, cache, intermediate values and staging.
        warnings: One line for each hint that was not honoured.
    """

    schema: int
    model: str
    adapter: str
    webgpu: str
    software: bool
    prompt_tokens: int
    tokens: int
    repeat: int
    interval: int
    load_ms: float
    first_run_ms: float
    time_to_first_token_ms: Spread
    prefill_tokens_per_second: Spread
    decode_tokens_per_second: Spread
    ms_per_token: dict[str, float]
    gpu_prefill_ms: float | None
    gpu_decode_ms_per_token: float | None
    host_ms_per_token: dict[str, float]
    work_per_token: dict[str, float]
    weights_bytes: int
    kv_bytes: int
    peak_gpu_bytes: int
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return asdict(self)


def measure(
    package: Package,
    work: Workload,
    *,
    adapter: str | None = None,
    webgpu: WebGpuChoice = "auto",
    options: LoadedAs | None = None,
    interval: int = 8,
) -> Speed:
    """Load a package and measure it.

    Args:
        package: The package to run.
        work: Prompt, new tokens (2 or more) and runs.
        adapter: Part of an adapter's name.
        webgpu: The implementation of WebGPU.
        options: How the package is loaded.
        interval: Tokens between two readbacks.

    Raises:
        UsageError: The workload exceeds the model's context length.
        DeviceError: There is no adapter, or the device has too little memory.
    """
    from rdrr_runtime.decode.autoregressive import Autoregressive

    with open_device(adapter, webgpu) as device:
        start = time.perf_counter()
        backend = load(package, device, work, options or LoadedAs())
        loaded = time.perf_counter() - start
        try:
            prompt = work.ids(package.manifest.architecture.vocab_size)
            runs = []
            for _ in range(work.repeat + 1):
                run = generate(
                    backend, Autoregressive(interval), prompt, work.tokens, device=device
                )
                runs.append(run)
                backend.settle()  # the first run is a cold one
            gpu = gpu_times(backend, device, prompt, work.tokens)
            return _summary(package, work, device, backend, loaded, runs, gpu, interval)
        finally:
            backend.close()


def _summary(
    package: Package,
    work: Workload,
    device: Device,
    backend: GpuBackend,
    loaded: float,
    runs: list[Run],
    gpu: GpuTimes,
    interval: int,
) -> Speed:
    from rdrr_runtime.compile.choice.decision import unhonoured

    cold, *warm = runs
    last = warm[-1]
    assert last.work is not None, "a GPU run counts its work"
    assert last.host is not None, "a GPU run times its calls"
    host = {"upload": last.host.write, "encode": last.host.submit, "download": last.host.read}
    firsts = [run.first_seconds for run in warm]
    per_token = [1e3 * seconds for run in warm for seconds in run.token_seconds]
    info = backend.info
    return Speed(
        schema=SCHEMA,
        model=package.manifest.model_id,
        adapter=device.info.name,
        webgpu=device.info.implementation,
        software=device.info.software,
        prompt_tokens=work.prompt_tokens,
        tokens=work.tokens,
        repeat=work.repeat,
        interval=interval,
        load_ms=1e3 * loaded,
        first_run_ms=1e3 * cold.first_seconds,
        time_to_first_token_ms=Spread.of([1e3 * seconds for seconds in firsts]),
        prefill_tokens_per_second=Spread.of([work.prompt_tokens / seconds for seconds in firsts]),
        decode_tokens_per_second=Spread.of([run.decoded / run.decode_seconds for run in warm]),
        ms_per_token={f"p{p}": percentile(per_token, p) for p in (50, 95, 99)},
        gpu_prefill_ms=gpu.prefill,
        gpu_decode_ms_per_token=gpu.decode,
        host_ms_per_token={name: 1e3 * seconds / last.decoded for name, seconds in host.items()},
        work_per_token={name: n / last.decoded for name, n in vars(last.work).items()},
        weights_bytes=info.weights_bytes,
        kv_bytes=info.kv_bytes,
        peak_gpu_bytes=device.memory.peak,
        warnings=unhonoured(info.decisions),
    )
