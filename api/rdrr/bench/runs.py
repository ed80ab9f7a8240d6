"""Load a package for a benchmark, and measure one generation.

All backends of a benchmark share one device, so that their runs can alternate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from rdrr_format.errors import UsageError

from rdrr import _webgpu
from rdrr._backends import resolve_hints
from rdrr._executor import persistence, tuned_executor
from rdrr._load import context_of
from rdrr._tuned import read_profile

if TYPE_CHECKING:
    from rdrr_device.counters import Counters, HostSeconds
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.base import Counts
    from rdrr_runtime.decode.strategy import Strategy
    from rdrr_runtime.gpu import GpuBackend

    from rdrr._load_options import ExecutorName, RoundedPlace, WebGpuChoice

MARGIN = 16
"""Cache slots beyond the longest generation."""


@dataclass(frozen=True)
class Workload:
    """The size of every run of a benchmark.

    Attributes:
        prompt_tokens: Token ids of the prompt; they are random, and the same in every run.
        tokens: New token ids, the first one included; never fewer, since no id ends a run.
        repeat: Rounds, after one that only warms up.
    """

    prompt_tokens: int = 512
    tokens: int = 128
    repeat: int = 5

    @property
    def context(self) -> int:
        """Cache slots that a run takes."""
        return self.prompt_tokens + self.tokens + MARGIN

    def as_dict(self) -> dict[str, int]:
        """Return the sizes for JSON."""
        return asdict(self)

    def ids(self, vocab: int) -> list[int]:
        """Return the prompt for a vocabulary of `vocab` tokens."""
        generator = np.random.default_rng(0)
        return [int(token_id) for token_id in generator.integers(0, vocab, self.prompt_tokens)]


@dataclass(frozen=True)
class LoadedAs:
    """How a package is loaded for a benchmark.

    Attributes:
        hints: Kernel hints for the run.
        kv_dtype: Data type of the key-value cache.
        fused: Whether ops are fused.
        executor: How decode passes are executed.
        rounded_weights: Where weights are that batches and prompts need rounded to rows.
    """

    hints: Mapping[str, str] = field(default_factory=dict)
    kv_dtype: str = "f16"
    fused: bool = True
    executor: ExecutorName = "dispatches"
    rounded_weights: RoundedPlace = "shared"


@contextmanager
def open_device(adapter: str | None, webgpu: WebGpuChoice = "auto") -> Iterator[Device]:
    """Open a device for the length of a block.

    Raises:
        DeviceError: No such adapter.
        UsageError: The implementation of WebGPU is not installed.
    """
    with closing(_webgpu.open_device(adapter, webgpu)) as opened:
        yield opened


def load(package: Package, device: Device, work: Workload, options: LoadedAs) -> GpuBackend:
    """Load a package on a device, with a cache large enough for the workload.

    Raises:
        UsageError: The workload exceeds the model's context length, or an option is wrong.
        DeviceError: The device has too little memory.
    """
    from rdrr_runtime.gpu import GpuBackend

    longest = package.manifest.architecture.max_seq_len
    if work.prompt_tokens + work.tokens > longest:
        raise UsageError(
            "the model has no room for the prompt and the new tokens",
            expected=f"at most {longest} together",
            found=work.prompt_tokens + work.tokens,
        )
    package.fetch()
    stored = read_profile(device.info)
    return GpuBackend(
        package,
        context=context_of(package, min(longest, work.context)),
        kv_dtype=options.kv_dtype,
        device=device,
        policy=resolve_hints(package, options.hints, options.rounded_weights),
        fused=options.fused,
        tuning=stored.tuning,
        persistence=persistence(
            device, options.executor, tuned_executor(stored, package, options.kv_dtype)
        ),
    )


@dataclass(frozen=True)
class Run:
    """The measurements of one generation.

    Attributes:
        ids: The generated token ids.
        first_seconds: Time from the start to the first id.
        decode_seconds: Time from the first id to the last.
        token_seconds: For each id after the first, the time between two readbacks divided by the
            number of ids that were read back together.
        counts: Forward passes and readbacks.
        work: Work that was submitted to the device after the first id; None on the CPU.
        host: Host time of that work; None on the CPU.
    """

    ids: tuple[int, ...]
    first_seconds: float
    decode_seconds: float
    token_seconds: tuple[float, ...]
    counts: Counts
    work: Counters | None
    host: HostSeconds | None

    @property
    def decoded(self) -> int:
        """Number of ids after the first."""
        return len(self.token_seconds)


def generate(
    backend: Backend,
    strategy: Strategy,
    prompt: Sequence[int],
    tokens: int,
    *,
    device: Device | None = None,
    decoding: AbstractContextManager[object] | None = None,
) -> Run:
    """Generate `tokens` ids and measure it.

    Args:
        backend: The loaded model.
        strategy: The decoding strategy.
        prompt: Token ids.
        tokens: Number of new ids.
        device: Device whose counters are read; None on the CPU.
        decoding: Context in which the ids after the first are generated.
    """
    from rdrr_runtime.decode.base import Counts, Job
    from rdrr_runtime.decode.chooser import Chooser
    from rdrr_runtime.decode.rules import TokenRules

    counts = Counts()
    chooser = Chooser(backend, TokenRules(), prompt)
    runs = strategy.run(Job(prompt, 0, tokens), chooser, counts)
    start = time.perf_counter()
    ids = list(next(runs))
    first = time.perf_counter()
    before = (device.counters.copy(), device.host.copy()) if device is not None else None
    token_seconds: list[float] = []
    last = first
    with decoding if decoding is not None else nullcontext():
        for run in runs:
            now = time.perf_counter()
            token_seconds += [(now - last) / len(run)] * len(run)
            ids += run
            last = now
    work, host = None, None
    if device is not None and before is not None:
        work, host = device.counters.since(before[0]), device.host.since(before[1])
    return Run(tuple(ids), first - start, last - first, tuple(token_seconds), counts, work, host)


@dataclass(frozen=True)
class GpuTimes:
    """GPU milliseconds of a prefill and of a decode pass; None without timestamps."""

    prefill: float | None = None
    decode: float | None = None


def gpu_times(backend: GpuBackend, device: Device, prompt: Sequence[int], tokens: int) -> GpuTimes:
    """Measure the GPU time of one generation of `tokens` ids, 2 or more, by timestamps."""
    from rdrr_device.pass_timer import timed
    from rdrr_device.timestamps import FEATURE

    if FEATURE not in device.features:
        return GpuTimes()
    with timed(device) as timer:
        first = backend.greedy(prompt, 0, 1)
        prefill = timer.collect()
        backend.greedy(first, len(prompt), tokens - 1)
        decode = timer.collect()
    return GpuTimes(1e3 * prefill, 1e3 * decode / (tokens - 1))
