"""The GPU backend: a single sequence, and batches of several sequences beside it.

Tokens, positions and sampled ids live in GPU buffers. Between two consecutive calls of `greedy` or
`sample` the host writes nothing: the last pass has already left the token and the position where
the next pass reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena, DeviceArena
from rdrr_device.device import Device, open_device
from rdrr_device.tuning import Tuning
from rdrr_manifests.package import Package

from rdrr_runtime.backend import BackendInfo, Mask, Row
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.early_plan import EarlyPlan
from rdrr_runtime.exec.executor import DispatchExecutor, Executor, Prepared
from rdrr_runtime.exec.persistent.choice import Persistence, chosen_executor
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.prepared import PreparedPass, PreparedPasses
from rdrr_runtime.images.rows import SeenImages, SequencePositions
from rdrr_runtime.packing import EncodedText
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.cache.state_positions import StatePosition
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.sampling.logprobs import TokenLogprobs
from rdrr_runtime.sampling.masks import MaskRules
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.draft_head import GpuDraftHead
from rdrr_runtime.sequences.feed import GpuFeed
from rdrr_runtime.sequences.gpu_batch import GpuBatch
from rdrr_runtime.sequences.gpu_sequences import (
    PASSES_PER_SUBMISSION,
    GpuSequences,
    GpuStateCopies,
    PassPart,
    submit_and_collect,
)
from rdrr_runtime.sequences.hidden import GpuHidden
from rdrr_runtime.sequences.mask_feed import GpuMaskFeed, GpuMasks
from rdrr_runtime.sequences.passes import SinglePasses
from rdrr_runtime.sequences.sampler import GpuSampler
from rdrr_runtime.sequences.windows import GpuWindows

F32 = npt.NDArray[np.float32]

AHEAD, SOFTWARE_AHEAD = 4, 2
"""Passes to submit before earlier ids are read back, on a GPU and on a software adapter. With only
2 an H200 waits for the host when it decodes a model of 135M parameters, whose passes take 0.8
ms."""


class GpuBackend:
    """A model on a WebGPU device.

    Args:
        package: What to load.
        context: Slots of the key-value cache.
        kv_dtype: Type of the cache's elements: `f16`, `f32` or `q8_0`.
        device: The device to use; opened on the best adapter when None.
        policy: Kernel hints; none when None.
        fused: Whether one kernel may serve several ops.
        tuning: Tuned parameters of kernels; the defaults when None.
        executor: Makes the executor that runs the passes on the device.
        persistence: How to run the decode pass in one dispatch, if the device can; None to launch
            each phase by itself.
        early: The plan of the same package, context, policy and so on, which is used if the device
            has the capabilities that it was made for, and memory for it.

    Raises:
        DeviceError: There is no adapter, or too little memory.
        UsageError: The KV dtype is unknown, or the model does not support it.
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
        executor: Callable[[Device], Executor] = DispatchExecutor,
        persistence: Persistence | None = None,
        early: EarlyPlan | None = None,
    ) -> None:
        KvCache.plan(package.graph, context, kv_dtype)
        self.device = device if device is not None else open_device()
        self._owns_device = device is None
        self._arena = DeviceArena(self.device, package.manifest.model_id)
        self._batch: GpuBatch | None = None
        self._head: GpuDraftHead | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            plan = early.on(self.device) if early else None
            if early and plan:
                self._arena = early.arena
            else:
                plan = Plan(
                    package,
                    self._arena,
                    policy or Policy(),
                    context=context,
                    kv_dtype=kv_dtype,
                    fused=fused,
                    tuning=tuning,
                    upload=False,
                )
                self.device.build_ahead(plan.weights.kernels())
            self.ahead = SOFTWARE_AHEAD if self.device.info.software else AHEAD
            self._plan = plan
            self._new_executor = executor
            whole, chosen = chosen_executor(plan, self._arena, persistence)
            self._executor = whole or executor(self.device)
            self._prepared = PreparedPasses(plan, self._executor)
            states = plan.cache.states
            copies = GpuStateCopies(self.device, states) if states.shapes else None
            self._position = StatePosition(copies)
            self._sequence = _single_sequence(plan, self._arena, self._prepared, self._position)
            self._windows = GpuWindows(self._sequence, self._prepared)
            # A software adapter gains nothing from passes ahead, for which more rows are launched.
            self._masks = GpuMasks(
                plan,
                self._executor,
                self._arena,
                self._sequence,
                0 if self.device.info.software else AHEAD,
            )
            self._hidden = GpuHidden(plan, self._arena, self._sequence, self._prepared)
            decisions = (*chosen, *plan.decisions())
            build_ahead(plan, self._executor)
            plan.upload()
            self._info = BackendInfo(
                "wgpu",
                self.device.info.name,
                context,
                plan.weights.size,
                plan.cache.size,
                decisions,
                kv_dtype,
                waits_for_ids=bool(plan.host_tables),
            )
            undo.pop_all()

    @property
    def images(self) -> SeenImages | None:
        """The images that the model has seen; None if it sees none."""
        return None if self._plan.images is None else self._plan.images.images

    @property
    def positions(self) -> SequencePositions | None:
        """The positions of the single sequence; None if the model sees no images."""
        return self._sequence.step.positions(0)

    def settle(self) -> None:
        """Bring decoding to the speed that it has in a process that runs for long.

        A token must have been decoded before.
        """
        self._executor.settle()

    @property
    def info(self) -> BackendInfo:
        """Facts about the backend."""
        if self._plan.weights.rows is not None:  # more of them when batches first need them
            self._info = replace(self._info, weights_bytes=self._plan.weights.size)
        return self._info

    def logits(self, ids: Sequence[int], base: int, *, all_rows: bool = False) -> F32:
        """Return the logits after the last of `ids`, or after each, see `Backend.logits`."""
        if all_rows:
            return self._windows.score(ids, base)
        return self._sequence.read_logits(self._run(ids, base, _to_logits), 1)

    def hidden(self, texts: Sequence[EncodedText]) -> Iterator[F32]:
        """Yield the hidden states of texts that the head would read, see `Backend.hidden`."""
        return self._hidden.read(texts)

    def means(self, texts: Sequence[EncodedText], part: slice) -> Iterator[F32]:
        """Yield the mean of a part of the hidden states of each text, see `Backend.means`."""
        return self._hidden.means(texts, part)

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, feed back each most probable token, and return `count` new ids."""
        return self._decode(ids, base, count)

    def feed(self, ids: Sequence[int], base: int, *, sampled: bool = False) -> GpuFeed:
        """Return a feed that can run ahead of readback, see `FeedingBackend.feed`."""
        assert not self._info.waits_for_ids, "the chooser runs ahead only where it may"
        return self._feed(ids, base, sampled=sampled, per_submission=PASSES_PER_SUBMISSION)

    def begin(
        self,
        options: SamplingParams,
        seen: Sequence[int],
        *,
        masked: bool = False,
        logprobs: int | None = None,
    ) -> None:
        """Start a generation that samples, see `SamplingBackend.begin`."""
        self._sequence.sampler.begin(options, seen, masked=masked, top=logprobs)

    def sample(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, feed back each sampled token, and return `count` new ids."""
        return self._decode(ids, base, count, sampled=True)

    def sample_masked(self, ids: Sequence[int], base: int, mask: Mask) -> list[int]:
        """Run `ids`, then sample one of the ids that the mask allows."""
        sampler = self._sequence.sampler

        def first() -> int:
            prepared = self._run(ids, base, _before_sampling)
            sampler.allow(mask())  # the host computes the mask while the GPU is busy
            self._executor.run(sampler.sample(prepared), 1)
            return 1

        rows = _last_row(ids, base)
        return submit_and_collect(self._sequence.feed(rows, first, sampled=True), 1)[0]

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities of the ids sampled since the last call."""
        return self._sequence.sampler.take_logprobs()

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run `ids` only to store their keys and values."""
        self._run(ids, base, _to_cache)

    def window_logits(
        self,
        ids: Sequence[int],
        base: int,
        *,
        last_n: int,
        positions: Sequence[int] | None = None,
    ) -> F32:
        """Return the logits of the last `last_n` rows, see `Backend.window_logits`."""
        return self._windows.logits(ids, base, last_n, positions)

    def window_picks(
        self,
        ids: Sequence[int],
        base: int,
        *,
        last_n: int,
        positions: Sequence[int] | None = None,
    ) -> tuple[list[int], F32]:
        """Return most probable ids, the lowest among equals, and entropies of the last rows."""
        return self._windows.picks(ids, base, last_n, positions)

    def mask_feed(self, base: int, rules: MaskRules, count: int) -> GpuMaskFeed | None:
        """Return a feed that fills masks after the sequence, see `MaskFillingBackend.mask_feed`."""
        return None if self._info.waits_for_ids else self._masks.feed(base, rules, count)

    def read_cache(self, slots: int) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the first slots of the cache, see `StoringBackend.read_cache`."""
        copy = self._position.index(slots)
        return self._plan.cache.read(self.device, slots, copy)

    def resumable(self, base: int) -> int:
        """Return the last position up to `base` at which a pass may begin."""
        return self._position.resumable(base)

    def write_cache(self, cache: Mapping[str, npt.NDArray[np.uint8]], slots: int) -> None:
        """Restore what `read_cache` returned."""
        self._sequence.step.invalidate()
        if self.positions is not None:
            self.positions.rewind(0)
        self._plan.cache.write(self.device, cache, slots)
        self._position.replace(slots)

    def batch(self, sequences: int, context: int) -> GpuBatch:
        """Return a batch with at least these sequences and slots; it is kept for the next call.

        Raises:
            UsageError: There are too many sequences, or the cache type does not support batches.
            DeviceError: There is too little memory.
        """
        held = self._batch
        if held is None or held.sequences < sequences or held.context < context:
            if held is not None:
                self._batch = None
                held.close()
            held = GpuBatch(self._plan, self._executor, sequences=sequences, context=context)
            self._batch = held
        return held

    def draft_head(self, package: Package) -> GpuDraftHead:
        """Load the draft head once, see `DraftingBackend.draft_head`."""
        if self._head is None:
            self._head = GpuDraftHead(self._plan, package, self._new_executor(self.device))
        return self._head

    def keep_hidden(self, *, keeps: bool) -> None:
        """Set whether passes keep their hidden states, see `DraftingBackend.keep_hidden`."""
        self._prepared.keeps_hidden = keeps

    def close(self) -> None:
        """Free GPU memory."""
        if self._head is not None:
            self._head.close()
        if self._batch is not None:
            self._batch.close()
        self._arena.dispose()
        if self._owns_device:
            self.device.close()

    def _decode(
        self, ids: Sequence[int], base: int, count: int, *, sampled: bool = False
    ) -> list[int]:
        """Return `count` new ids, one by one if the host must know each of them."""
        at_once = 1 if self._info.waits_for_ids else count
        generated: list[int] = []
        while len(generated) < count:
            new = submit_and_collect(self._feed(ids, base, sampled=sampled), at_once)[0]
            base += len(ids) + at_once - 1
            ids = new[-1:]
            generated += new
        return generated

    def _feed(
        self, ids: Sequence[int], base: int, *, sampled: bool = False, per_submission: int = 1
    ) -> GpuFeed:
        to_token = self._sequence.to_token(sampled)

        def first() -> int:
            self._run(ids, base, to_token)
            return 1

        rows = _last_row(ids, base)
        return self._sequence.feed(rows, first, sampled=sampled, per_submission=per_submission)

    def _run(self, ids: Sequence[int], base: int, part: PassPart) -> PreparedPass:
        prepared = self._sequence.run(ids, base, part)
        assert prepared is not None, "a single sequence has passes of its own"
        return prepared


def _single_sequence(
    plan: Plan, arena: Arena, prepared: PreparedPasses, position: StatePosition
) -> GpuSequences:
    """Return the sequence of a backend, which is a batch of one with passes of its own."""
    executor, vocabulary = prepared.executor, plan.graph.vocab_size
    return GpuSequences(
        executor,
        plan.state,
        SinglePasses(prepared),
        vocabulary,
        partial(GpuSampler, executor, arena, plan.state, vocabulary),
        position,
        plan.host_tables,
        plan.images,
    )


def build_ahead(plan: Plan, executor: Executor) -> None:
    """Start to compile the shaders of the passes that a generation runs, in their order.

    They are compiled beside the upload of the weights, behind those that round weights for them. A
    decode pass that runs in one dispatch has a shader of its own, which has been compiled when it
    was tried.
    """
    first, *others = (spec for spec in plan.loaded if spec != DECODE)
    decode = () if isinstance(executor, PersistentExecutor) else (DECODE,)
    phases = [phase for spec in (first, *decode, *others) for phase in plan.lowered(spec).phases]
    rounding = () if plan.weights.rows is None else plan.weights.rows.kernels
    executor.device.build_ahead((*rounding, *(as_dispatch(phase).kernel for phase in phases)))


def _last_row(ids: Sequence[int], base: int) -> tuple[Row]:
    """Return the last row of the single sequence, after which a token is chosen."""
    return (Row(ids[-1], 0, base + len(ids) - 1),)


def _to_cache(prepared: PreparedPass) -> Prepared:
    return prepared.body


def _to_logits(prepared: PreparedPass) -> Prepared:
    return prepared.to_logits


def _before_sampling(prepared: PreparedPass) -> Prepared:
    return prepared.before_sampling
