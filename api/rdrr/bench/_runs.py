"""Opening what is measured, and one measured generation.

All backends of a benchmark share one device, so that their runs can take turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from rdrr_format.errors import UsageError

from rdrr._backends import resolve_hints
from rdrr._load import context_of
from rdrr._tuned import read_profile

if TYPE_CHECKING:
    from rdrr_device.counters import Counters, HostSeconds
    from rdrr_device.device import Device
    from rdrr_device.submission import Submission
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.base import Counts, Strategy
    from rdrr_runtime.gpu import GpuBackend

MARGIN = 16
"""Slots beyond the longest generation."""


@dataclass(frozen=True)
class Workload:
    """What every run does.

    Attributes:
        prompt_tokens: Ids of the prompt, drawn at random, always the same.
        tokens: New ids, the first one included; never fewer, since no id ends the text.
        repeat: Rounds.
    """

    prompt_tokens: int = 512
    tokens: int = 128
    repeat: int = 5

    @property
    def context(self) -> int:
        """Slots that it takes."""
        return self.prompt_tokens + self.tokens + MARGIN

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)

    def ids(self, vocab: int) -> list[int]:
        """The prompt."""
        generator = np.random.default_rng(0)
        return [int(one) for one in generator.integers(0, vocab, self.prompt_tokens)]


@dataclass(frozen=True)
class Options:
    """How a package is loaded.

    Attributes:
        hints: Kernel hints for the run.
        kv_dtype: Storage of the key-value cache.
        fused: Whether ops are fused.
    """

    hints: Mapping[str, str] = field(default_factory=dict)
    kv_dtype: str = "f16"
    fused: bool = True


@contextmanager
def open_device(adapter: str | None) -> Iterator[Device]:
    """A device for the length of a block.

    Raises:
        DeviceError: No such adapter.
    """
    from rdrr_device import device

    opened = device.open_device(adapter)
    try:
        yield opened
    finally:
        opened.close()


def load(package: Package, device: Device, work: Workload, options: Options) -> GpuBackend:
    """A package on a device, with room for the workload.

    Raises:
        UsageError: The model has no room for it, or an option is wrong.
        DeviceError: Too little memory.
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
    return GpuBackend(
        package,
        context=context_of(package, min(longest, work.context)),
        kv_dtype=options.kv_dtype,
        device=device,
        policy=resolve_hints(package, options.hints),
        fused=options.fused,
        tuning=read_profile(device.info).tuning,
    )


@dataclass(frozen=True)
class Run:
    """One generation, measured.

    Attributes:
        ids: What was generated.
        first_seconds: From the start to the first id.
        decode_seconds: From the first id to the last.
        token_seconds: For each id after the first its share of the time between two readbacks.
        counts: Forward passes and readbacks.
        work: What the device was asked to do after the first id; None on the CPU.
        host: The host's time for that; None on the CPU.
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
        """Ids after the first."""
        return len(self.token_seconds)


def generate(
    backend: Backend,
    strategy: Strategy,
    prompt: Sequence[int],
    tokens: int,
    *,
    device: Device | None = None,
    how: Submission | None = None,
) -> Run:
    """Generate `tokens` ids; those after the first are submitted as `how` says.

    Args:
        backend: The loaded model.
        strategy: How ids are chosen and read back.
        prompt: Token ids.
        tokens: New ids.
        device: Whose counters count; None on the CPU.
        how: Submission of the decoding; the usual one when None.
    """
    from rdrr_runtime.decode.base import Counts, Job

    counts = Counts()
    runs = strategy.run(backend, Job(prompt, 0, tokens, frozenset()), counts)
    start = time.perf_counter()
    ids = list(next(runs))
    first = time.perf_counter()
    before = (device.counters.copy(), device.host.copy()) if device is not None else None
    shares: list[float] = []
    last = first
    with _submitting(device, how):
        for run in runs:
            now = time.perf_counter()
            shares += [(now - last) / len(run)] * len(run)
            ids += run
            last = now
    work, host = None, None
    if device is not None and before is not None:
        work, host = device.counters.since(before[0]), device.host.since(before[1])
    return Run(tuple(ids), first - start, last - first, tuple(shares), counts, work, host)


@contextmanager
def _submitting(device: Device | None, how: Submission | None) -> Iterator[None]:
    if device is None or how is None:
        yield
        return
    with device.submitting(how):
        yield


@dataclass(frozen=True)
class GpuTimes:
    """GPU milliseconds of a prompt's passes and of a decode pass; None without timestamps."""

    prefill: float | None = None
    decode: float | None = None


def gpu_times(backend: GpuBackend, device: Device, prompt: Sequence[int], tokens: int) -> GpuTimes:
    """GPU time of one generation of `tokens` ids, 2 or more, from timestamps."""
    from rdrr_device.pass_timer import timed
    from rdrr_device.timestamps import FEATURE

    if FEATURE not in device.features:
        return GpuTimes()
    with timed(device) as timer:
        first = backend.greedy(prompt, 0, 1)
        prefill = timer.take()
        backend.greedy(first, len(prompt), tokens - 1)
        decode = timer.take()
    return GpuTimes(1e3 * prefill, 1e3 * decode / (tokens - 1))
