"""Token ids in, token ids out. It does not know text: that is `rdrr_runtime.text`.

The engine checks that a generation fits the context, picks the strategy, and times what the
published tables time: time to first token, prefill and decode.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdrr_format.errors import GenerationError, UsageError

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode._base import Counts, Job, Strategy
from rdrr_runtime.decode.constrained import Constrained, Constraint
from rdrr_runtime.decode.greedy import Greedy
from rdrr_runtime.decode.sampled import Sampled
from rdrr_runtime.logprobs import Logprobs
from rdrr_runtime.sampling import SamplingOptions


@dataclass
class GenerationStats:
    """Measured while generating; complete once the iterator has ended.

    Attributes:
        prompt_tokens: Ids of the prompt.
        new_tokens: Ids delivered, an end-of-text included.
        first_token_seconds: From the start to the first id.
        total_seconds: From the start to the last id.
        finish: `stop` (an end-of-text id, or a constraint that is complete), `length`
            (max_tokens), `context` (the context is full), or `running`.
        counts: Forward passes, wasted ones and readbacks.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0
    finish: str = "running"
    counts: Counts = field(default_factory=Counts)

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens over the time to first token."""
        return self.prompt_tokens / self.first_token_seconds if self.first_token_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Delivered tokens after the first over the time after the first."""
        seconds = self.total_seconds - self.first_token_seconds
        return (self.new_tokens - 1) / seconds if seconds > 0 and self.new_tokens > 1 else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that came of the passes after the prompt's, for each of these."""
        counts = self.counts
        return (counts.rows - counts.wasted_rows) / counts.forwards if counts.forwards else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The figures for `--json` and `--stats`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "finish": self.finish,
            "time_to_first_token_ms": 1e3 * self.first_token_seconds,
            "total_ms": 1e3 * self.total_seconds,
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "forwards": self.counts.forwards,
            "wasted_forwards": self.counts.wasted,
            "rows": self.counts.rows,
            "wasted_rows": self.counts.wasted_rows,
            "tokens_per_forward": self.tokens_per_forward,
            "drafted": self.counts.drafted,
            "accepted": self.counts.accepted,
            "readbacks": self.counts.readbacks,
        }


class Engine:
    """Runs generations on one backend, one at a time.

    Args:
        backend: The loaded model.
        eos_token_ids: Ids that end a text.
        vocab_size: Ids must lie below it.
    """

    def __init__(self, backend: Backend, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        self.backend = backend
        self._eos = frozenset(eos_token_ids)
        self._vocab_size = vocab_size

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        sampling: SamplingOptions | None = None,
        interval: int = 8,
        stats: GenerationStats | None = None,
        logprobs: Logprobs | None = None,
        constraint: Constraint | None = None,
        strategy: Strategy | None = None,
    ) -> Iterator[list[int]]:
        """Runs of new ids, each as soon as it is known.

        Args:
            prompt: Token ids, at least one.
            max_tokens: Most new tokens; fewer when the context fills up before.
            sampling: How tokens are chosen; greedy when None.
            interval: Tokens between two readbacks from the device.
            stats: Filled while the iterator runs.
            logprobs: Filled while the iterator runs.
            constraint: What may come; read back one by one.
            strategy: A way of decoding of its own; it takes the place of `sampling`, `interval`,
                `logprobs` and `constraint`.

        Raises:
            GenerationError: The prompt is empty, has an unknown id, or does not fit the context.
            UsageError: `max_tokens` or `interval` is not positive, or a biased id is unknown.
        """
        sampling = sampling or SamplingOptions()
        sampling.check_ids(self._vocab_size)
        stats = stats if stats is not None else GenerationStats()
        if max_tokens < 1 or interval < 1:
            raise UsageError("max_tokens and interval must be 1 or more")
        room = self._room(prompt)
        job = Job(list(prompt), 0, min(max_tokens, room), self._eos)
        chosen = strategy or _strategy(sampling, interval, logprobs, constraint)
        return self._timed(chosen, job, stats, max_tokens)

    def _room(self, prompt: Sequence[int]) -> int:
        """New tokens that fit after the prompt; the last of them needs no slot of its own."""
        context = self.backend.info.context
        if not prompt:
            raise GenerationError("the prompt has no tokens", hint="give some text")
        unknown = [token_id for token_id in prompt if not 0 <= token_id < self._vocab_size]
        if unknown:
            raise GenerationError(
                "token id outside the vocabulary",
                expected=f"below {self._vocab_size}",
                found=unknown[0],
            )
        if len(prompt) > context:
            raise GenerationError(
                "the prompt is longer than the context",
                expected=f"at most {context} tokens",
                found=f"{len(prompt)} tokens",
                hint="shorten it or load the model with a larger context",
            )
        return context - len(prompt) + 1

    def _timed(
        self, strategy: Strategy, job: Job, stats: GenerationStats, asked: int
    ) -> Iterator[list[int]]:
        stats.prompt_tokens = len(job.prompt)
        start = time.perf_counter()
        for ids in strategy.run(self.backend, job, stats.counts):
            stats.total_seconds = time.perf_counter() - start
            if not stats.new_tokens:
                stats.first_token_seconds = stats.total_seconds
            stats.new_tokens += len(ids)
            if ids[-1] in job.stop_ids or stats.counts.completed:
                stats.finish = "stop"
            yield ids
        if stats.finish == "running":
            stats.finish = "length" if stats.new_tokens >= asked else "context"


def _strategy(
    sampling: SamplingOptions,
    interval: int,
    logprobs: Logprobs | None,
    constraint: Constraint | None,
) -> Strategy:
    if constraint is not None:
        return Constrained(sampling, constraint, logprobs)
    if sampling.is_greedy and logprobs is None:
        return Greedy(interval)
    return Sampled(sampling, interval, logprobs)
