"""Sampling, on the device where it can, else on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.host_sampling import HostSampling, sampling_backend
from rdrr_runtime.decode.interval import AHEAD, feed_of, in_intervals
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams


@dataclass(frozen=True)
class Sampled:
    """Temperature, top-k, top-p and the rest of `SamplingParams`.

    Attributes:
        options: How each token is chosen.
        interval: Tokens between two readbacks from a device that samples.
        logprobs: Filled, where wanted, with an entry for each id delivered.
        ahead: Passes that the device is given before a readback, if it takes any.
    """

    options: SamplingParams
    interval: int = 1
    logprobs: Logprobs | None = None
    ahead: int = AHEAD

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of ids: one, then `interval` at a time; one by one on the host."""
        source, recorded = sampling_backend(backend), self.logprobs
        top = None if recorded is None else recorded.top
        source.begin(self.options, [*job.seen, *job.prompt], logprobs=top)
        interval = 1 if isinstance(source, HostSampling) else self.interval
        feed, ahead = feed_of(source, job, source.sample, self.ahead, sampled=True)
        for ids in in_intervals(feed, job, counts, interval, ahead):
            if recorded is not None:
                recorded.tokens += source.take_logprobs()[: len(ids)]
            yield ids
