"""The GPU backend: a program, and the little that the host does between its passes.

Token, position and sampled ids live in GPU buffers. Between two calls of `greedy` or `draw` that
follow each other the host writes nothing: the last pass has already put the token and the position
where the next pass reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.device import Device, open_device
from rdrr_device.tuning import Tuning
from rdrr_manifests.package import Package

from rdrr_runtime.backend import BackendInfo, Mask
from rdrr_runtime.compile.hints import Policy
from rdrr_runtime.compile.pass_spec import DECODE, PREFILL, SCORE
from rdrr_runtime.exec.program import Pass, Plan, Program, write_step
from rdrr_runtime.phases.kv_cache import KvSpec
from rdrr_runtime.sampling.logprobs import TokenLogprobs
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.feed import GpuFeed, Place
from rdrr_runtime.sequences.gpu_batch import GpuBatch
from rdrr_runtime.sequences.sampler import Bound, GpuSampler
from rdrr_runtime.sequences.windows import GpuWindows

F32 = npt.NDArray[np.float32]
Launches = Callable[[Pass], Bound]
"""What of a pass is run."""

TOGETHER = 2
"""Passes of a submission where they go ahead of their ids: the GPU rests between submissions."""


class GpuBackend:
    """A model on a WebGPU device.

    Args:
        package: What to load.
        context: KV slots.
        kv_dtype: `f16`, `f32` or `q8_0`.
        device: Where; opened on the best adapter when None.
        policy: Kernel hints; none when None.
        fused: Use the fused kernels of the decode pass.
        tuning: Parameters of kernels; the defaults when None.

    Raises:
        DeviceError: No adapter, or too little memory.
        UsageError: Another KV dtype, or one that does not suit the model.
    """

    def __init__(
        self,
        package: Package,
        *,
        context: int,
        kv_dtype: str = "f16",
        device: Device | None = None,
        policy: Policy | None = None,
        fused: bool = True,
        tuning: Tuning | None = None,
    ) -> None:
        KvSpec.make(package.graph.kv_heads, package.graph.head_dim, context, kv_dtype)
        self.device = device if device is not None else open_device()
        self._owns_device = device is None
        self._arena = Arena(self.device, package.manifest.model_id)
        plan = Plan(
            package,
            self.device,
            self._arena,
            policy or Policy(),
            context=context,
            kv_dtype=kv_dtype,
            fused=fused,
            tuning=tuning,
        )
        self._plan = plan
        self._batch: GpuBatch | None = None
        self._state = plan.state
        self._program = Program(plan, self.device)
        self._vocab = plan.graph.vocab_size
        self._windows = GpuWindows(self.device, self._state, self._program, self._vocab)
        self._place = Place()
        self._sampler: GpuSampler | None = None
        self._told: list[TokenLogprobs] = []
        decisions = plan.decisions()
        self._info = BackendInfo(
            "wgpu",
            self.device.info.name,
            context,
            plan.weights.size,
            plan.cache.size,
            decisions,
            kv_dtype,
        )

    @property
    def info(self) -> BackendInfo:
        """Facts about the backend."""
        return self._info

    def logits(self, ids: Sequence[int], base: int, *, all_rows: bool = False) -> F32:
        """Logits after the last of `ids`, float32 [1, vocab]; of every row with `all_rows`."""
        if all_rows:
            return self._score(ids, base)
        return self._read_logits(self._run(ids, base, _to_logits), 1)

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, then feed back the likeliest token; `count` new ids, read back at once."""
        return self._at_once(ids, base, count, _to_token, tells=False)

    def feed(self, ids: Sequence[int], base: int, *, drawn: bool = False) -> GpuFeed:
        """Passes that can be issued ahead of their ids, see `FeedingBackend.feed`."""
        to_token: Launches = self._drawing().to_token if drawn else _to_token
        first = partial(self._run, ids, base, to_token)
        return self._feed(first, to_token, base + len(ids), together=TOGETHER, tells=drawn)

    def begin(
        self,
        options: SamplingParams,
        seen: Sequence[int],
        *,
        masked: bool = False,
        logprobs: int | None = None,
    ) -> None:
        """Start a generation that draws, see `DrawingBackend.begin`."""
        self._drawing().begin(options, seen, masked=masked, top=logprobs)
        self._told = []

    def draw(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, then feed back the token drawn; `count` new ids, read back at once."""
        return self._at_once(ids, base, count, self._drawing().to_token, tells=True)

    def draw_among(self, ids: Sequence[int], base: int, mask: Mask) -> list[int]:
        """Run `ids`, then draw one id of those that a mask lets through."""
        sampler = self._drawing()

        def first() -> None:
            which = self._run(ids, base, _to_logits)
            sampler.allow(mask())  # worked out while the GPU is busy
            self.device.submit(sampler.draw(which), 1)

        return _taken(self._feed(first, sampler.to_token, base + len(ids), tells=True), 1)

    def told(self) -> list[TokenLogprobs]:
        """Log-probabilities of the ids drawn since the last call, where `begin` wanted them."""
        told, self._told = self._told, []
        return told

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run `ids` for their keys and values alone."""
        self._run(ids, base, _to_cache)

    def window_logits(
        self,
        ids: Sequence[int],
        base: int,
        *,
        wanted: int,
        positions: Sequence[int] | None = None,
    ) -> F32:
        """Logits of the last `wanted` of `ids`, see `Backend.window_logits`."""
        self._place.lose()
        return self._windows.logits(ids, base, wanted, positions)

    def window_picks(
        self,
        ids: Sequence[int],
        base: int,
        *,
        wanted: int,
        positions: Sequence[int] | None = None,
    ) -> tuple[list[int], F32]:
        """The likeliest id of each of these rows, ties to the lower one, and its entropy."""
        self._place.lose()
        return self._windows.picks(ids, base, wanted, positions)

    def _drawing(self) -> GpuSampler:
        if self._sampler is None:
            self._sampler = GpuSampler(self.device, self._arena, self._state, self._vocab)
        return self._sampler

    def _at_once(
        self, ids: Sequence[int], base: int, count: int, to_token: Launches, *, tells: bool
    ) -> list[int]:
        first = partial(self._run, ids, base, to_token)
        return _taken(self._feed(first, to_token, base + len(ids), tells=tells), count)

    def _feed(
        self,
        first: Callable[[], object],
        to_token: Launches,
        end: int,
        *,
        tells: bool,
        together: int = 1,
    ) -> GpuFeed:
        sampler = self._drawing() if tells else None
        return GpuFeed(
            self.device,
            self._state,
            self._place,
            first=first,
            again=lambda: to_token(self._program.get(DECODE)),
            end=end,
            together=together,
            records=sampler.records if sampler is not None and sampler.has_records else None,
            told=self._tell,
        )

    def _tell(self, ids: Sequence[int], data: npt.NDArray[np.uint8]) -> None:
        self._told += self._drawing().unpack(ids, data)

    def read_cache(self, slots: int) -> dict[str, npt.NDArray[np.uint8]]:
        """The first slots of the cache, see `StoringBackend.read_cache`."""
        return self._plan.cache.read(self.device, slots)

    def write_cache(self, cache: Mapping[str, npt.NDArray[np.uint8]], slots: int) -> None:
        """Put back what `read_cache` gave."""
        self._place.lose()
        self._plan.cache.write(self.device, cache, slots)

    def batch(self, sequences: int, context: int) -> GpuBatch:
        """Caches of several sequences, at least as many and as long; kept for the next call.

        Raises:
            UsageError: Too many sequences, or a cache type that has no rows of several.
            DeviceError: Too little memory.
        """
        held = self._batch
        if held is None or held.sequences < sequences or held.context < context:
            if held is not None:
                self._batch = None
                held.close()
            held = GpuBatch(self._plan, self.device, sequences=sequences, context=context)
            self._batch = held
        return held

    def close(self) -> None:
        """Free GPU memory."""
        if self._batch is not None:
            self._batch.close()
        self._arena.dispose()
        if self._owns_device:
            self.device.close()

    def _run(self, ids: Sequence[int], base: int, to_end: Launches) -> Pass:
        """All passes over `ids`, the head after the last of them."""
        which = self._program.get(DECODE if len(ids) == 1 else PREFILL)
        resumes = self._place.take(ids, base)
        for start in range(0, len(ids), which.rows):
            part = ids[start : start + which.rows]
            if not resumes:
                write_step(self.device, self._state, part, base + start)
            is_last = start + len(part) == len(ids)
            self.device.submit(to_end(which) if is_last else which.body, len(part))
        return which

    def _score(self, ids: Sequence[int], base: int) -> F32:
        score = self._program.get(SCORE)
        out = np.empty((len(ids), self._vocab), np.float32)
        for start in range(0, len(ids), score.rows):
            part = ids[start : start + score.rows]
            write_step(self.device, self._state, part, base + start)
            self.device.submit(score.to_logits, len(part))
            out[start : start + len(part)] = self._read_logits(score, len(part))
        self._place.lose()
        return out

    def _read_logits(self, which: Pass, rows: int) -> F32:
        data = self.device.read(which.logits, 0, 4 * rows * self._vocab)
        return data.view(np.float32).reshape(rows, self._vocab)


def _to_cache(which: Pass) -> Bound:
    return which.body


def _to_logits(which: Pass) -> Bound:
    return which.to_logits


def _to_token(which: Pass) -> Bound:
    return which.to_token


def _taken(feed: GpuFeed, count: int) -> list[int]:
    """So many ids, waited for."""
    feed.issue(count)
    feed.cut()
    return feed.take()
