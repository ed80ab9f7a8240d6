"""What a profile of a model holds: GPU time by kernel, and what the host did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.adapters import AdapterInfo


@dataclass(frozen=True)
class KernelTime:
    """One kernel in one kind of step.

    Attributes:
        kernel: Its label.
        ops: Dispatches of it in a step.
        calls: Dispatches that were measured.
        seconds: GPU time of these.
        bytes: Weights and cache that they had to move.
    """

    kernel: str
    ops: int
    calls: int
    seconds: float
    bytes: int

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Attributes:
        on_gpu: On the GPU's clock; else on that of the host.
        name: What it was.
        group: The kernel, or what the host did.
        begin: Seconds.
        end: Seconds.
    """

    on_gpu: bool
    name: str
    group: str
    begin: float
    end: float


@dataclass(frozen=True)
class StepProfile:
    """One kind of step.

    Attributes:
        name: `prefill` (the whole prompt) or `decode` (one token).
        steps: How many were measured.
        rows: Token rows of a step.
        gpu_seconds: GPU time of a step, run as in generation.
        encode_seconds: Host time to record and submit a step.
        sync_seconds: Host time from there until its result was seen; the GPU's work is within.
        kernels: From the one that took longest; each dispatch in a pass of its own.
    """

    name: str
    steps: int
    rows: int
    gpu_seconds: float
    encode_seconds: float
    sync_seconds: float
    kernels: tuple[KernelTime, ...]

    @property
    def kernel_seconds(self) -> float:
        """GPU time of a step's kernels, each by itself."""
        return sum(one.seconds for one in self.kernels) / self.steps


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        adapter: Where.
        copy_bandwidth: Bytes a second that a copy reads and writes.
        copy_bytes: Bytes that it read and wrote.
        prefill: Reading the prompt.
        decode: Tokens after it.
        spans: All of it in order, for a trace.
        gpu_offset: What to add to the GPU's clock to get the host's.
    """

    adapter: AdapterInfo
    copy_bandwidth: float
    copy_bytes: int
    prefill: StepProfile
    decode: StepProfile
    spans: tuple[Span, ...]
    gpu_offset: float
