"""The result of the profiler: GPU time by kernel, and the host's time around it."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.adapters import AdapterInfo

from rdrr_runtime.measure.one_dispatch import OneDispatch


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel in one kind of step.

    Attributes:
        kernel: Label of the kernel.
        ops: Dispatches per step.
        calls: Dispatches measured over all steps.
        seconds: GPU time of the measured dispatches.
        bytes: Bytes of weights and cache that the measured dispatches had to move.
    """

    kernel: str
    ops: int
    calls: int
    seconds: float
    bytes: int

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds


@dataclass(frozen=True)
class Span:
    """An interval of time in a trace.

    Attributes:
        on_gpu: Whether its times are those of the GPU's clock; otherwise of the host's.
        name: Label of the op, or the work of the host.
        group: Label of the kernel, or the kind of work of the host.
        begin: Begin in seconds.
        end: End in seconds.
    """

    on_gpu: bool
    name: str
    group: str
    begin: float
    end: float


@dataclass(frozen=True)
class StepProfile:
    """The measurements of one kind of step.

    Attributes:
        name: `prefill` (the whole prompt) or `decode` (one token).
        steps: Number of measured steps.
        rows: Token rows per step.
        gpu_seconds: GPU time of a step, run as in generation.
        encode_seconds: Host time to record and submit a step.
        sync_seconds: Host time from the submission until its end is seen, including the GPU's work.
        kernels: Times of the kernels, the longest first; each dispatch runs in its own compute
            pass.
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
        """GPU time of a step as the sum of its kernels, each run by itself."""
        return sum(kernel.seconds for kernel in self.kernels) / self.steps


@dataclass(frozen=True)
class Profile:
    """The profile of a model.

    Attributes:
        adapter: The adapter on which it was measured.
        copy_bandwidth: Bytes per second of a large copy, reads and writes together.
        copy_bytes: Bytes that the copy read and wrote.
        prefill: The prefill of the prompt.
        decode: The decoding of tokens after it.
        spans: All measured intervals in order, for a trace.
        gpu_offset: Seconds to add to the GPU's clock to get the host's clock.
        one_dispatch: The decode pass in one dispatch; None if it was not measured.
    """

    adapter: AdapterInfo
    copy_bandwidth: float
    copy_bytes: int
    prefill: StepProfile
    decode: StepProfile
    spans: tuple[Span, ...]
    gpu_offset: float
    one_dispatch: OneDispatch | None = None
