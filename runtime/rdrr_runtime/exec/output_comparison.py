"""The comparison of two lists of phases by the results that they leave in memory.

The outputs are filled with noise before each run, so that an output left unwritten shows as a
difference. Buffers that only pass values from one phase to the next are not compared, since their
form may depend on the parameters that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_device.shaders import Access

from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.phase import Phase

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

TOLERANCE = 1e-3
"""Largest difference, relative to the largest magnitude of the results, of f32 sums that are
computed in another order."""

INT8_TOLERANCE = 2e-2
"""The same where values are f16, or where a tiny difference may change how a value is rounded to
int8."""


@dataclass(frozen=True)
class _Output:
    """A range of memory that is compared.

    Attributes:
        memory: The range.
        kind: How it is compared: as `f32` or `f16` values, or `exact` for ids and blocks.
        noise: Whether it is filled with noise before each run.
    """

    memory: BufferSlice
    kind: str
    noise: bool

    def values(self, raw: Bytes) -> F32 | Bytes:
        """Return the contents as f32 values, or unchanged if they are compared exactly."""
        if self.kind == "exact":
            return raw
        return raw.view(np.float16 if self.kind == "f16" else np.float32).astype(np.float32)


@dataclass(frozen=True)
class Check:
    """Consecutive phases, and the outputs by which they are compared with others.

    Attributes:
        executor: Runs the phases.
        phases: The phases, in order.
        outputs: The ranges of memory that they leave for later phases.
        tolerance: Largest difference of a value, relative to the largest magnitude of its output.
    """

    executor: Executor
    phases: tuple[Phase, ...]
    outputs: tuple[_Output, ...]
    tolerance: float

    @staticmethod
    def of(executor: Executor, plan: Plan, phases: Sequence[Phase]) -> Check:
        """Find the outputs of some phases of a plan, and return their check."""
        values = "f16" if plan.value_bytes == 2 else "f32"
        caches = {
            id(part.buffer)
            for layer in plan.cache.layers.values()
            for part in (layer.keys, layer.values)
        }
        state = plan.state
        counters = {id(part.buffer) for part in (state.step, state.ring)}
        cached = {"f16": "f16", "f32": "f32"}.get(plan.cache.dtype, "exact")
        logits = plan.lowered(DECODE).logits.buffer
        outputs: dict[tuple[int, int], _Output] = {}
        for memory, is_wide in _results(phases):
            owner = id(memory.buffer)
            if owner in caches:
                output = _Output(memory, cached, noise=False)
            elif owner in counters:
                output = _Output(memory, "exact", noise=False)
            else:
                wide = is_wide or memory.buffer is logits
                output = _Output(memory, "f32" if wide else values, noise=True)
            outputs[owner, memory.offset] = output
        int8 = any("int8" in f"{phase.name} {phase.tuning_keys}" for phase in phases)
        loose = int8 or "f16" in {values, cached}
        tolerance = INT8_TOLERANCE if loose else TOLERANCE
        return Check(executor, tuple(phases), tuple(outputs.values()), tolerance)

    def with_phases(self, phases: Sequence[Phase]) -> Check:
        """Return the check of other phases that write the same outputs."""
        return replace(self, phases=tuple(phases))

    def results(self, prepared: Prepared, rows: int, reset: Callable[[], None]) -> list[Bytes]:
        """Run the phases and return their outputs; memory is restored afterwards.

        Args:
            prepared: The phases, ready to run.
            rows: Token rows.
            reset: Writes the step that the phases read.
        """
        device = self.executor.device
        saved = [device.read(output.memory) for output in self.outputs]
        rng = np.random.default_rng(len(self.outputs))
        for output in self.outputs:
            if output.noise:
                wide = np.float16 if output.kind == "f16" else np.float32
                count = output.memory.size // np.dtype(wide).itemsize
                device.write(output.memory, rng.standard_normal(count, np.float32).astype(wide))
        reset()
        self.executor.run(prepared, rows)
        contents = [device.read(output.memory) for output in self.outputs]
        for output, raw in zip(self.outputs, saved, strict=True):
            device.write(output.memory, raw)
        reset()
        return contents

    def agrees(self, reference: Sequence[Bytes], found: Sequence[Bytes]) -> bool:
        """Return whether two lists of results are equal within the tolerance."""
        for output, expected, got in zip(self.outputs, reference, found, strict=True):
            a, b = output.values(expected), output.values(got)
            if output.kind == "exact":
                if not np.array_equal(a, b):
                    return False
                continue
            largest = float(np.abs(a).max(initial=0.0))
            error = float(np.abs(a - b).max(initial=0.0))
            if not error <= self.tolerance * largest:  # written so that NaN does not agree
                return False
        return True


def distance(reference: F32, result: F32) -> float:
    """Return the largest difference of two arrays, relative to the largest magnitude of the first.

    NaN if a value of the second is, so compare with `<=`: it is no agreement.
    """
    largest = max(float(np.abs(reference).max()), float(np.finfo(np.float32).tiny))
    return float(np.abs(result - reference).max()) / largest


def _results(phases: Sequence[Phase]) -> list[tuple[BufferSlice, bool]]:
    """Return the ranges that are written but not read by a later phase.

    Each comes with whether its values are f32 even where activations are f16.
    """
    handed: set[int] = set()
    results: list[tuple[BufferSlice, bool]] = []
    for phase in reversed(phases):
        pairs = list(zip(phase.bindings, phase.slices, strict=True))
        for binding, memory in pairs:
            if binding.access is Access.READ_WRITE and id(memory.buffer) not in handed:
                # Partial results of attention stay f32 where activations are f16.
                parts = binding.name in ("sums", "stats") or phase.name.startswith(
                    "attention_decode"
                )
                results.append((memory, parts))
        handed |= {id(memory.buffer) for binding, memory in pairs if binding.access is Access.READ}
    return results
