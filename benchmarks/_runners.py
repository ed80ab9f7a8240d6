"""What the benchmark times, ours and the peer's, behind one small interface.

Times only; what to run how often, in which order, is the benchmark's business.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rdrr.bench.llama_cpp import PeerModel
    from rdrr_device.device import Device

INTERVAL = 8  # tokens between two readbacks


class Runner(Protocol):
    """A loaded model that can be timed."""

    name: str
    load_seconds: float

    def prefill(self, ids: Sequence[int]) -> float:
        """Seconds from an empty cache to the end of a prompt."""
        ...

    def decode(self, ids: Sequence[int], length: int) -> float:
        """Seconds of as many single-token passes as `ids` behind `length` cached tokens."""
        ...

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after a prompt, float32 [vocab]."""
        ...

    def close(self) -> None:
        """Free its memory."""
        ...


class Ours:
    """A package on our GPU backend; greedy, each token chosen on the GPU.

    Args:
        name: Shown in the table.
        folder: The package.
        device: Where.
        context: KV slots.
    """

    def __init__(self, name: str, folder: Path, device: Device, context: int) -> None:
        from rdrr_manifests.package import open_package
        from rdrr_runtime.gpu import GpuBackend

        self.name = name
        self.device = device
        start = time.perf_counter()
        self._backend = GpuBackend(open_package(folder), context=context, device=device)
        self._backend.greedy([3], 0, 1)
        self.load_seconds = time.perf_counter() - start
        self.weights_bytes = self._backend.info.weights_bytes
        self._last = 3

    def prefill(self, ids: Sequence[int]) -> float:
        """As `Runner.prefill`; the first new token is chosen and read back too."""
        start = time.perf_counter()
        self._last = self._backend.greedy(ids, 0, 1)[-1]
        return time.perf_counter() - start

    def decode(self, ids: Sequence[int], length: int) -> float:
        """As `Runner.decode`, but the tokens are those that the model chooses."""
        from rdrr_runtime.decode.base import Counts, Job
        from rdrr_runtime.decode.greedy import Greedy

        job = Job([self._last], length, len(ids), frozenset())
        start = time.perf_counter()
        deque(Greedy(INTERVAL).run(self._backend, job, Counts()), maxlen=0)
        return time.perf_counter() - start

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """As `Runner.logits`."""
        last: npt.NDArray[np.float32] = self._backend.logits(ids, 0)[0]
        return last

    def batch(self, texts: int, length: int, slots: int) -> Callable[[int], float]:
        """Fill `length` slots of each of some texts; a function that times steps of all of them.

        Args:
            texts: Rows of a step.
            length: Tokens behind which each of them stands.
            slots: Of each cache.
        """
        from rdrr_runtime.sequences.batch import Row

        batch = self._backend.batch(texts, slots)
        ids = np.random.default_rng(0).integers(3, 100, (texts, length)).tolist()
        batch.fill(
            [Row(one, at, slot) for at, row in enumerate(ids) for slot, one in enumerate(row)]
        )

        def run(steps: int) -> float:
            start = time.perf_counter()
            batch.greedy([Row(3 + at, at, length) for at in range(texts)], steps)
            return time.perf_counter() - start

        return run

    @property
    def kv_bytes_per_slot(self) -> float:
        """Keys and values of a token, of all layers."""
        info = self._backend.info
        return info.kv_bytes / info.context

    def close(self) -> None:
        """Free its memory, not the device."""
        self._backend.close()


class LlamaCppRunner:
    """llama.cpp with one choice of its own options; given tokens, nothing sampled.

    Args:
        model: The weights, which several runners may share.
        context: Tokens of the cache.
        flash_attention: Use its fused attention.
        ubatch: Prompt tokens that one of its passes computes.
        load_seconds: What loading the weights took.
    """

    def __init__(
        self,
        model: PeerModel,
        context: int,
        *,
        flash_attention: bool,
        ubatch: int,
        load_seconds: float,
    ) -> None:
        from rdrr.bench.llama_cpp import PeerContext

        attention = "flash attention" if flash_attention else "no flash attention"
        self.name = f"llama.cpp, {attention}, ubatch {ubatch}"
        start = time.perf_counter()
        # Contexts of llama.cpp are whole multiples of 256 tokens.
        slots = -(-context // 256) * 256
        self._context = PeerContext(
            model, context=slots, flash_attention=flash_attention, ubatch=ubatch
        )
        self._context.prefill([3])
        self.load_seconds = load_seconds + time.perf_counter() - start

    def prefill(self, ids: Sequence[int]) -> float:
        """As `Runner.prefill`; the last logits reach the host."""
        return self._context.prefill(ids)

    def decode(self, ids: Sequence[int], length: int) -> float:
        """As `Runner.decode`; logits reach the host after every token."""
        return self._context.decode(ids, length)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """As `Runner.logits`."""
        self._context.prefill(ids)
        return self._context.logits()

    def close(self) -> None:
        """Free its cache."""
        self._context.close()
