"""Host sampling: the interface of a sampling backend for a backend that only returns logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rdrr_runtime.backend import Backend, Mask, SamplingBackend
from rdrr_runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import Sampler


class HostSampling:
    """A sampler on the host over a backend's logits, one forward pass per token.

    Args:
        backend: Computes the logits.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._top: int | None = None
        self._allowed: npt.NDArray[np.bool_] | None = None
        self._recorded: list[TokenLogprobs] = []

    def begin(
        self,
        options: SamplingParams,
        seen: Sequence[int],
        *,
        masked: bool = False,
        logprobs: int | None = None,
    ) -> None:
        """Start a generation, see `SamplingBackend.begin`."""
        del masked
        self._sampler, self._seen, self._top = Sampler(options), list(seen), logprobs

    def sample(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, feed back each sampled token, and return `count` new ids."""
        out: list[int] = []
        for _ in range(count):
            logits = self._backend.logits(ids, base)[0]
            allowed = None if self._allowed is None else self._allowed[: len(logits)]
            token_id = self._sampler.choose(logits, self._seen, allowed)
            if self._top is not None:
                self._recorded.append(token_logprobs(logits, token_id, self._top))
            base += len(ids)
            ids = [token_id]
            out.append(token_id)
            self._seen.append(token_id)
        return out

    def sample_masked(self, ids: Sequence[int], base: int, mask: Mask) -> list[int]:
        """Run `ids`, then sample one of the ids that the mask allows."""
        self._allowed = np.unpackbits(mask().view(np.uint8), bitorder="little").astype(bool)
        return self.sample(ids, base, 1)

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities of the ids sampled since the last call."""
        recorded, self._recorded = self._recorded, []
        return recorded


def sampling_backend(backend: Backend) -> SamplingBackend:
    """Return the backend itself if it can sample; otherwise wrap it in host sampling."""
    return backend if isinstance(backend, SamplingBackend) else HostSampling(backend)
