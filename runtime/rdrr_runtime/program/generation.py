"""A generation of a program: how its ids are chosen, recorded and read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from rdrr_device.readback import Fetch
from rdrr_format.errors import UsageError

from rdrr_runtime.program.loaded import LoadedProgram, Prepared
from rdrr_runtime.program.schema import Logprobs as Recording
from rdrr_runtime.program.schema import Pass, Program, Sampling
from rdrr_runtime.sampling.finite import check_ids
from rdrr_runtime.sampling.logprobs import Logprobs, record_bytes, unpack

AHEAD = 4
"""Decode passes in a submission, one of which is ahead of the readback of the one before."""


class PlayedGeneration:
    """A generation.

    Args:
        loaded: The program.
        sampling: The phases that sample; None to take the most probable ids.
        logprobs: Receives the log-probabilities of each id before it is yielded.

    Raises:
        UsageError: The program records too few log-probabilities.
    """

    def __init__(
        self, loaded: LoadedProgram, sampling: Sampling | None, logprobs: Logprobs | None
    ) -> None:
        self._loaded, self._sampling, self._logprobs = loaded, sampling, logprobs
        self._recording = None if logprobs is None else _recording(loaded.program, logprobs)

    def to_token(self, chosen: Pass) -> Prepared:
        """Return a pass ready to run, up to the id that is chosen and what is recorded of it."""
        sampling, recording = self._sampling, self._recording
        name = "greedy" if sampling is None else f"{sampling.top_k}, {sampling.top_p}"
        phases = chosen.sample if sampling is None else sampling.phases
        recorded = recording.phases if recording else ()
        whole = (*chosen.body, *chosen.head, *phases, *recorded)
        return self._loaded.bound((chosen.name, name, str(bool(recording))), whole)

    def decode(self, count: int) -> Iterator[int]:
        """Yield ids; passes for the next ones are submitted before the ids of the last are read."""
        device, decode = self._loaded.device, self.to_token(self._loaded.program.passes[0])
        waiting: deque[tuple[int, Fetch]] = deque()
        submitted = min(count, 1)
        if submitted:
            waiting.append((1, self._fetch(0, 1)))
        try:
            while waiting:
                some = min(AHEAD, count - submitted)
                if some:
                    device.submit(decode, 1, some)
                    waiting.append((some, self._fetch(submitted, some)))
                    submitted += some
                steps, fetch = waiting.popleft()
                data = np.concatenate(fetch.collect())
                ids = data[: 4 * steps].view(np.uint32)
                check_ids(ids)
                yield from self._recorded(ids.tolist(), data[4 * steps :])
        finally:
            for _, fetch in waiting:
                fetch.collect()

    def _recorded(self, ids: Sequence[int], records: npt.NDArray[np.uint8]) -> Iterator[int]:
        """Yield ids, and before each give its log-probabilities to whoever asked for them."""
        logprobs, recording = self._logprobs, self._recording
        if logprobs is None or recording is None:
            yield from ids
            return
        vocabulary = self._loaded.program.vocabulary
        for token in unpack(ids, records, vocabulary=vocabulary, top=recording.top):
            logprobs.tokens.append(replace(token, top=token.top[: logprobs.top]))
            yield token.token_id

    def _fetch(self, first: int, count: int) -> Fetch:
        """Start to read the ids of some steps from the ring, and behind them their records."""
        ranges, recording = self._loaded.ranges, self._recording
        ring = ranges[self._loaded.program.ring]
        rings = [(ring, 4)]
        if recording is not None:
            rings.append((ranges[recording.records], record_bytes(recording.top)))
        steps = ring.size // 4
        pieces = [(first % steps, min(count, steps - first % steps))]
        while sum(some for _, some in pieces) < count:
            pieces.append((0, min(steps, count - sum(some for _, some in pieces))))
        return self._loaded.device.fetch(
            *(part.range(size * at, size * some) for part, size in rings for at, some in pieces)
        )


def _recording(program: Program, logprobs: Logprobs) -> Recording:
    """Return what records the log-probabilities that are asked for.

    Raises:
        UsageError: The program records fewer, or none.
    """
    recording = None if program.sampler is None else program.sampler.logprobs
    if recording is None or logprobs.top > recording.top:
        raise UsageError(
            "the program does not record as many log-probabilities",
            where=program.model,
            found=logprobs.top,
            hint="export the program again with this version of rdrr",
        )
    return recording
