"""Loaded models that benchmarks time, rdrr's and llama.cpp's, behind one small interface.

A runner only takes times. The benchmark decides what runs, how often and in which order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from rdrr.bench.figures import Spread
from rdrr.bench.runs import LoadedAs, Workload, load
from rdrr_runtime.exec.persistent.choice import OP

if TYPE_CHECKING:
    from peers.llama_cpp import PeerModel
    from rdrr_device.device import Device

INTERVAL = 8  # decoded tokens per readback


class Runner(Protocol):
    """A loaded model that can be timed.

    Attributes:
        name: Name in tables.
        vocab: Size of the vocabulary.
        load_seconds: Seconds from the path of the model to its first token.
    """

    name: str
    vocab: int
    load_seconds: float

    def prefill(self, ids: Sequence[int]) -> float:
        """Run a prompt from an empty cache and return its seconds."""

    def decode(self, ids: Sequence[int], length: int) -> float:
        """Decode `len(ids)` tokens after `length` cached tokens and return the seconds."""

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits after a prompt, float32 [vocab]."""

    def close(self) -> None:
        """Free the memory of the model."""


class RdrrRunner:
    """A package on rdrr's GPU backend with greedy decoding; the argmax is taken on the GPU.

    Args:
        name: Name in tables.
        folder: Folder of the package.
        device: GPU to load it on.
        work: Workload whose tokens the key-value cache must hold.
        options: How the package is loaded.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        device: Device,
        work: Workload,
        options: LoadedAs | None = None,
    ) -> None:
        # Imported before the time is taken: the load should not include importing modules.
        import rdrr_runtime.gpu  # noqa: F401
        from rdrr_manifests.package import open_package

        self.name = name
        self.folder = folder
        self.device = device
        start = time.perf_counter()
        package = open_package(folder)
        self._backend = load(package, device, work, options or LoadedAs(executor="auto"))
        self._backend.greedy([3], 0, 1)
        self.load_seconds = time.perf_counter() - start
        self._backend.settle()
        self.weights_bytes = self._backend.info.weights_bytes
        self.vocab = package.manifest.architecture.vocab_size
        self._last = 3

    @cached_property
    def bytes_per_token(self) -> int:
        """The bytes of weights that one token reads.

        These are all weights outside embeddings, an embedding that is also the output head, and of
        the experts those that a token selects.
        """
        from rdrr_manifests.logical import EMBEDDING
        from rdrr_manifests.package import open_package

        manifest = open_package(self.folder).manifest
        tied, moe = manifest.inference.output.tie_word_embeddings, manifest.moe_config
        selected = 1.0 if moe is None else moe.num_experts_per_token / moe.num_experts
        size = 0.0
        for name, tensor in manifest.tensors.items():
            if tensor.role != "embedding" or (tied and name == EMBEDDING):
                size += tensor.size * (selected if tensor.role == "expert" else 1.0)
        return round(size)

    def prefill(self, ids: Sequence[int]) -> float:
        """See `Runner.prefill`; the time includes reading back the first new token."""
        start = time.perf_counter()
        self._last = self._backend.greedy(ids, 0, 1)[-1]
        return time.perf_counter() - start

    def decode(self, ids: Sequence[int], length: int) -> float:
        """See `Runner.decode`; the tokens are those that the model generates, not `ids`."""
        from rdrr_runtime.decode.autoregressive import Autoregressive
        from rdrr_runtime.decode.base import Counts, Job
        from rdrr_runtime.decode.chooser import Chooser
        from rdrr_runtime.decode.rules import TokenRules

        job = Job([self._last], length, len(ids))
        start = time.perf_counter()
        chooser = Chooser(self._backend, TokenRules(), job.prompt)
        deque(Autoregressive(INTERVAL).run(job, chooser, Counts()), maxlen=0)
        return time.perf_counter() - start

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """See `Runner.logits`."""
        last: npt.NDArray[np.float32] = self._backend.logits(ids, 0)[0]
        return last

    def batch(self, sequences: int, length: int, slots: int) -> Callable[[int], float]:
        """Fill the caches of a batch and return a function that times decode steps of it.

        Args:
            sequences: Number of sequences; each step decodes one token of each.
            length: Tokens in the cache of each sequence.
            slots: Slots of the cache of each sequence.

        Returns:
            A function that takes a number of steps and returns their seconds.
        """
        from rdrr_runtime.backend import Row

        batch = self._backend.batch(sequences, slots)
        ids = np.random.default_rng(0).integers(3, 100, (sequences, length)).tolist()
        batch.fill(
            [Row(token, at, slot) for at, row in enumerate(ids) for slot, token in enumerate(row)]
        )

        def run(steps: int) -> float:
            start = time.perf_counter()
            batch.greedy([Row(3 + at, at, length) for at in range(sequences)], steps)
            return time.perf_counter() - start

        run(1)
        batch.settle()
        return run

    @property
    def decode_pass(self) -> str:
        """How the decode pass is launched when the model is loaded, and why."""
        decisions = self._backend.info.decisions
        reasons = (f"{each.kernel}: {each.reason}" for each in decisions if each.op == OP)
        return next(reasons, "dispatches")

    @property
    def kv_bytes_per_slot(self) -> float:
        """Return the bytes of one token's keys and values, summed over all layers."""
        info = self._backend.info
        return info.kv_bytes / info.context

    def close(self) -> None:
        """Free the memory of the model; the device stays open."""
        self._backend.close()


class LlamaCppRunner:
    """llama.cpp with one choice of its options; it runs given tokens and samples nothing.

    Args:
        model: The loaded weights, which several runners may share.
        context: Tokens that the cache must hold.
        flash_attention: Whether llama.cpp uses its fused attention.
        ubatch: Prompt tokens per pass (llama.cpp's micro-batch).
        threads: CPU threads; llama.cpp's default when None.
        load_seconds: Seconds that loading the weights took; they are added to those of this runner.
    """

    def __init__(
        self,
        model: PeerModel,
        context: int,
        *,
        flash_attention: bool = True,
        ubatch: int = 512,
        threads: int | None = None,
        load_seconds: float = 0.0,
    ) -> None:
        from peers.llama_cpp import PeerContext

        attention = "flash attention" if flash_attention else "no flash attention"
        self.name = f"llama.cpp, {attention}, ubatch {ubatch}"
        start = time.perf_counter()
        # The context length of llama.cpp must be a multiple of 256 tokens.
        slots = -(-context // 256) * 256
        self._context = PeerContext(
            model, context=slots, flash_attention=flash_attention, ubatch=ubatch, threads=threads
        )
        self.vocab = model.vocab
        self._context.prefill([3])
        self.load_seconds = load_seconds + time.perf_counter() - start

    def prefill(self, ids: Sequence[int]) -> float:
        """See `Runner.prefill`; the time includes reading back the last logits."""
        return self._context.prefill(ids)

    def decode(self, ids: Sequence[int], length: int) -> float:
        """See `Runner.decode`; the time includes reading back the logits of every token."""
        return self._context.decode(ids, length)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """See `Runner.logits`."""
        self._context.prefill(ids)
        return self._context.logits()

    def close(self) -> None:
        """Free the context with its cache; the weights stay loaded."""
        self._context.close()


def rates(tokens: int, seconds: Sequence[float]) -> Spread:
    """Return the tokens per second of runs over `tokens` tokens each.

    Args:
        tokens: Tokens of one run.
        seconds: Seconds of each run.
    """
    return Spread.of([tokens / duration for duration in seconds])
