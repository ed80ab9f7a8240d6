"""Decoding by drawing from the distribution on the host, one token a pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode._base import Counts, Job
from rdrr_runtime.sampling import Sampler, SamplingOptions


@dataclass(frozen=True)
class Sampled:
    """Temperature, top-k, top-p and the rest of `SamplingOptions`.

    Attributes:
        options: How each token is chosen.
    """

    options: SamplingOptions

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of one id each."""
        sampler = Sampler(self.options)
        seen = [*job.seen, *job.prompt]
        pending, base = list(job.prompt), job.base
        for index in range(job.max_tokens):
            logits = backend.logits(pending, base)[0]
            counts.readbacks += 1
            counts.forwards += index > 0
            base += len(pending)
            token_id = sampler.choose(logits, seen)
            yield [token_id]
            if token_id in job.stop_ids:
                return
            seen.append(token_id)
            pending = [token_id]
