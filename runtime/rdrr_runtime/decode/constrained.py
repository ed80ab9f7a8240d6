"""Decoding under a constraint: before each token a mask of those that may come.

A mask depends on the token before it, so ids are read back one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.host_sampling import sampling_backend
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams


class Constraint(Protocol):
    """Says which tokens may come next; it lives for one generation."""

    @property
    def complete(self) -> bool:
        """Whether nothing more may come."""
        ...

    def mask(self) -> npt.NDArray[np.uint32]:
        """Bit i mod 32 of word i / 32: whether token i may come next."""
        ...

    def accept(self, token_id: int) -> None:
        """Take the token that came."""
        ...


@dataclass(frozen=True)
class Constrained:
    """Any sampling, greedy included, among the tokens that a constraint lets through.

    Attributes:
        options: How each token is chosen.
        constraint: What may come.
        logprobs: Filled, where wanted, with an entry for each id delivered.
    """

    options: SamplingParams
    constraint: Constraint
    logprobs: Logprobs | None = None

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of one id each.

        Raises:
            GenerationError: Nothing may come, and the constraint is not complete.
        """
        source, recorded = sampling_backend(backend), self.logprobs
        seen = [*job.seen, *job.prompt]
        top = None if recorded is None else recorded.top
        source.begin(self.options, seen, masked=True, logprobs=top)
        pending, base = list(job.prompt), job.base
        for index in range(job.max_tokens):
            ids = source.sample_masked(pending, base, self._mask)
            counts.readbacks += 1
            counts.forwards += index > 0
            counts.rows += index > 0
            if recorded is not None:
                recorded.tokens += source.take_logprobs()
            base += len(pending)
            ended = ids[0] in job.stop_ids
            if not ended:
                self.constraint.accept(ids[0])
                ended = counts.completed = self.constraint.complete
            yield ids
            if ended:
                return
            pending = ids

    def _mask(self) -> npt.NDArray[np.uint32]:
        mask = self.constraint.mask()
        if not mask.any():
            raise GenerationError("no token satisfies the constraint")
        return mask
