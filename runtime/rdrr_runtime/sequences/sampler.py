"""The sampler of a GPU backend: its buffers, its launches after a pass, and what the host writes.

The host writes when a generation begins (parameters, and the tokens that were seen or biased); for
a token it writes nothing, but for a mask where one is set. How the launches work is told in
`phases/sample.py`. Nothing is made before the first generation that draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch

from rdrr_runtime.exec.program import Pass
from rdrr_runtime.phases.context import State
from rdrr_runtime.phases.logprobs import LogprobBuffers, logprobs, record_bytes, unpack
from rdrr_runtime.phases.sample import (
    ENTRIES,
    SampleBuffers,
    chain_of,
    pack_params,
    sample,
    set_tokens,
)
from rdrr_runtime.sampling.logprobs import TokenLogprobs
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed

Bound = tuple[BoundDispatch, ...]
Entry = tuple[int, int, float]  # id, times seen, bias


class GpuSampler:
    """Draws tokens after the passes of one model.

    Args:
        device: Where.
        arena: Owner of the buffers.
        state: The step that a draw advances.
        vocabulary: Logits of a pass.
    """

    def __init__(self, device: Device, arena: Arena, state: State, vocabulary: int) -> None:
        self._device = device
        self._state = state
        self._buffers = SampleBuffers.create(arena, vocabulary)
        self._logprobs = LogprobBuffers.create(arena, state.ring.size // 4)
        self._options = SamplingParams()
        self._top: int | None = None
        self._set_tokens = (device.bind(set_tokens(self._buffers, "sample.set")),)
        # A pass is kept beside its launches, so that its id is not given to another.
        self._made: dict[tuple[int, bool, bool, int | None], tuple[Bound, Bound, Pass]] = {}

    def begin(
        self,
        options: SamplingParams,
        seen: Sequence[int],
        *,
        masked: bool = False,
        top: int | None = None,
    ) -> None:
        """Start a generation.

        Args:
            options: How tokens are chosen.
            seen: Ids that the penalties apply to, as often as they were there.
            masked: Whether `allow` is called for every token.
            top: How many of the likeliest tokens records tell; None for no records.
        """
        self._options, self._top = options, top
        seed = fresh_seed() if options.seed is None else options.seed
        self._device.write(self._buffers.params, pack_params(options, seed, masked=masked))
        self._set(entries_of(options, seen))

    def allow(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set the mask of the next token: bit i mod 32 of word i / 32 lets token i be drawn."""
        self._device.write(self._buffers.mask, mask)

    def to_token(self, which: Pass) -> Bound:
        """Body, head and the draw; the same object each time, so that it is encoded quickly."""
        return self._launches(which)[0]

    def draw(self, which: Pass) -> Bound:
        """The draw alone, after `which.to_logits`."""
        return self._launches(which)[1]

    def _launches(self, which: Pass) -> tuple[Bound, Bound, Pass]:
        options, top = self._options, self._top
        key = (id(which), *chain_of(options), top)
        if key not in self._made:
            made = sample(self._buffers, self._state, which.logits, options, "sample")
            if top is not None:
                width = self._buffers.vocabulary
                made += logprobs(
                    self._logprobs, self._state, which.logits, vocabulary=width, top=top
                )
            draw = tuple(self._device.bind(one) for one in made)
            self._made[key] = ((*which.to_logits, *draw), draw, which)
        return self._made[key]

    @property
    def has_records(self) -> bool:
        """Whether the generation wants records."""
        return self._top is not None

    def records(self, start: int, count: int) -> BufferSlice:
        """The records of so many places of the ring from `start` on."""
        size = record_bytes(self._top or 0)
        return self._logprobs.records.range(start * size, count * size)

    def unpack(self, ids: Sequence[int], data: npt.NDArray[np.uint8]) -> list[TokenLogprobs]:
        """What the bytes of records tell of their ids."""
        return unpack(ids, data, vocabulary=self._buffers.vocabulary, top=self._top or 0)

    def _set(self, entries: Sequence[Entry]) -> None:
        """Make these the only tokens with counts or a bias."""
        buffers = self._buffers
        self._device.clear(buffers.counts)
        self._device.clear(buffers.bias)
        for start in range(0, len(entries), ENTRIES):
            part = entries[start : start + ENTRIES]
            words = np.zeros((len(part), 3), np.uint32)
            words[:, :2] = [entry[:2] for entry in part]
            words[:, 2] = np.array([entry[2] for entry in part], np.float32).view(np.uint32)
            self._device.write(buffers.entries, np.array([len(part)], np.uint32))
            self._device.write(buffers.entries, words, offset=4)
            self._device.submit(self._set_tokens, 1)


def entries_of(options: SamplingParams, seen: Sequence[int]) -> list[Entry]:
    """The tokens with counts or a bias, in order."""
    counts: dict[int, int] = {}
    if options.penalizes:
        for token_id in seen:
            counts[token_id] = counts.get(token_id, 0) + 1
    bias = options.logit_bias
    ids = sorted({*counts, *bias})
    return [(one, counts.get(one, 0), bias.get(one, 0.0)) for one in ids]
