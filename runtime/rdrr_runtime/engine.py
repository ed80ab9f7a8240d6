"""The engine: it continues a list of token ids. Text is the business of `rdrr_runtime.text`.

The engine checks that a generation fits the context, runs its decoding strategy, and measures time
to first token, prefill and decode. It keeps track of the ids in the key-value cache: if a prompt
begins with them, only the rest of the prompt runs.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import FormatError, GenerationError, UsageError
from rdrr_format.options import check_count

from rdrr_runtime.backend import Backend, SeeingBackend, StoringBackend, images_of, resumable
from rdrr_runtime.decode.autoregressive import Autoregressive
from rdrr_runtime.decode.backend_lock import BackendLock
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.chooser import Chooser
from rdrr_runtime.decode.interval import AUTO, Interval, check_interval
from rdrr_runtime.decode.request import Request, check_prompt, no_room
from rdrr_runtime.decode.rules import Constraint, TokenRules
from rdrr_runtime.decode.scheduler import Pace, ScheduledText, Scheduler
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.decode.strategy import Strategy
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.cached_ids import CachedIds, check_keep, shift_context

SLOTS = 256
"""The slots of a batch's sequences are rounded up to a multiple of this, so that a similar next
batch fits the same caches."""


class Engine:
    """An engine that runs generations on one backend, one at a time, called from any thread.

    Args:
        backend: The loaded model.
        eos_token_ids: Ids that end a sequence.
        vocab_size: Number of token ids of the model.
        lock: Mutual exclusion for the backend; made anew when None.
    """

    def __init__(
        self,
        backend: Backend,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        lock: BackendLock | None = None,
    ) -> None:
        self.backend = backend
        self.lock = lock if lock is not None else BackendLock()
        self._eos = frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        self._cached_ids = CachedIds()

    @contextmanager
    def lend(self) -> Iterator[Backend]:
        """Lend the backend to the caller for a block; its cache counts as empty afterwards.

        Raises:
            GenerationError: See `BackendLock.begin`.
        """
        with self.lock.exclusive():
            self._cached_ids = CachedIds()
            yield self.backend

    def save_cache(self, ids: Sequence[int]) -> tuple[int, dict[str, npt.NDArray[np.uint8]]]:
        """Return how many leading `ids` the cache holds, and their keys and values.

        Raises:
            GenerationError: See `BackendLock.begin`.
        """
        if not isinstance(self.backend, StoringBackend):
            return 0, {}
        with self.lock.exclusive():
            slots = resumable(self.backend, self._cached_ids.shared(ids))
            return slots, self.backend.read_cache(slots)

    def load_cache(
        self, ids: Sequence[int], slots: int, cache: Mapping[str, npt.NDArray[np.uint8]]
    ) -> None:
        """Restore the keys and values of the first `slots` of `ids` into the cache.

        Raises:
            GenerationError: The ids do not fit the context.
            FormatError: An id is not in the vocabulary, or the keys and values are those of another
                model.
        """
        images = images_of(self.backend)
        beyond = [token for token in ids if token >= self._vocab_size]
        unknown = [token for token in beyond if images is None or not images.knows(token)]
        if unknown:
            raise FormatError(
                "the session has an id that is not in the vocabulary",
                expected=f"below {self._vocab_size}",
                found=unknown[0],
            )
        context = self.backend.info.context
        if len(ids) > context:
            raise GenerationError(
                "the session is longer than the context",
                expected=f"at most {context} tokens",
                found=f"{len(ids)} tokens",
                hint="load the model with a larger context",
            )
        with self.lend() as backend:
            if slots and isinstance(backend, StoringBackend):
                backend.write_cache(cache, slots)
                positions = backend.positions if isinstance(backend, SeeingBackend) else None
                if positions is not None:
                    positions.of(ids[:slots], 0)
                self._cached_ids.extend(ids[:slots])

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        sampling: SamplingParams | None = None,
        interval: Interval = AUTO,
        stats: GenerationStats | None = None,
        logprobs: Logprobs | None = None,
        constraint: Constraint | None = None,
        strategy: Strategy | None = None,
        stop_ids: Sequence[int] = (),
        context_shift: int | None = None,
    ) -> Generator[list[int], None, None]:
        """Return an iterator over groups of new ids, each yielded as soon as it is read back.

        Args:
            prompt: Token ids, at least one.
            max_tokens: Largest number of new tokens; there are fewer if the context fills up.
            sampling: How tokens are chosen; greedy when None.
            interval: Tokens between two readbacks from the device, or `auto`, which chooses up to 8
                by the measured speed, so that text comes steadily.
            stats: Updated while the iterator runs.
            logprobs: Receives log-probabilities while the iterator runs.
            constraint: Restricts which tokens may follow.
            strategy: The decoding strategy; autoregressive decoding with `interval` when None.
            stop_ids: Ids that end the sequence, besides those of the model.
            context_shift: Number of first ids to keep when the context is full. The older half of
                the other ids is dropped, the rest runs again, and the sequence continues. A prompt
                that is too long is shortened in the same way. None ends the sequence instead.

        Raises:
            GenerationError: The prompt is empty, has an unknown id, or does not fit the context.
                While iterating: another call has ended the generation (see `BackendLock`).
            UsageError: `max_tokens` or `interval` is out of range, a biased id is unknown,
                `context_shift` is more than half of the context, or the strategy cannot follow
                these rules.
        """
        sampling = sampling or SamplingParams()
        sampling.check_ids(self._vocab_size)
        stats = stats if stats is not None else GenerationStats()
        check_count("max_tokens", max_tokens)
        check_interval(interval)
        self._check(prompt, shifts=context_shift is not None)
        if context_shift is not None:
            check_keep(context_shift, self.backend.info.context)
        rules = TokenRules(sampling, self._eos.union(stop_ids), constraint, logprobs)
        strategy = strategy if strategy is not None else Autoregressive(interval)
        refusal = strategy.refusal(rules)
        if refusal is not None:
            raise UsageError(refusal, hint="omit `decode`, or the option that it does not support")
        request = Request(list(prompt), max_tokens, rules, context_shift, strategy)
        return self._timed(request, stats)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        sampling: SamplingParams | None = None,
        interval: int = 8,
        stop_ids: Sequence[int] = (),
        sequences: int = 16,
        counts: Counts | None = None,
    ) -> list[ScheduledText]:
        """Continue several prompts together, each as if it were alone.

        Args:
            prompts: Token ids of each prompt, at least one.
            max_tokens: Largest number of new tokens of each prompt.
            sampling: How tokens are chosen; each prompt gets the tokens that it would get alone.
            interval: Tokens between two readbacks from the device.
            stop_ids: Ids that end a sequence, besides those of the model.
            sequences: Largest number of sequences in a pass; further prompts wait.
            counts: Updated; a forward pass over the rows of all sequences counts once.

        Raises:
            GenerationError: A prompt is empty, has an unknown id, or does not fit the context.
            UsageError: An option is out of range, or the cache type does not support batches.
        """
        sampling = sampling or SamplingParams()
        sampling.check_ids(self._vocab_size)
        for name, value in {
            "max_tokens": max_tokens,
            "interval": interval,
            "sequences": sequences,
        }.items():
            check_count(name, value)
        for prompt in prompts:
            self._check(prompt)
        if not prompts:
            return []
        longest = max(map(len, prompts)) + max_tokens
        slots = min(self.backend.info.context, -(-longest // SLOTS) * SLOTS)
        ends = self._eos.union(stop_ids)
        texts = [ScheduledText(prompt, max_tokens, sampling, ends) for prompt in prompts]
        with self.lock.exclusive():
            batch = self.backend.batch(min(sequences, len(prompts)), slots)
            Scheduler(batch, Pace(interval=interval), counts).run(texts)
        return texts

    def _check(self, prompt: Sequence[int], *, shifts: bool = False) -> None:
        context = self.backend.info.context
        check_prompt(
            prompt,
            context=context,
            vocab_size=self._vocab_size,
            shifts=shifts,
            images=images_of(self.backend),
        )

    def _timed(self, request: Request, stats: GenerationStats) -> Generator[list[int], None, None]:
        """Yield and time the groups of a generation while it has a lease of the backend."""
        stats.prompt_tokens = len(request.prompt)
        runs = self._runs(request, stats)
        lease = self.lock.begin(runs.close)
        try:
            start = time.perf_counter()
            while True:
                with lease.step():
                    ids = next(runs, None)
                if ids is None:
                    break
                stats.total_seconds = time.perf_counter() - start
                if not stats.new_tokens:
                    stats.first_token_seconds = stats.total_seconds
                stats.new_tokens += len(ids)
                yield ids
        finally:
            lease.end()
        if stats.finish == "running":
            stats.finish = "length" if stats.new_tokens >= request.max_tokens else "context"

    def _runs(self, request: Request, stats: GenerationStats) -> Generator[list[int], None, None]:
        """Yield the groups of ids, continuing after each context shift."""
        strategy = request.strategy
        # The last id of a sequence needs no slot unless the strategy runs it.
        longest = self.backend.info.context - strategy.slots_of_last
        ids, dropped, left = list(request.prompt), list[int](), request.max_tokens
        while True:
            if request.keep is not None and len(ids) > longest:
                ids, more = shift_context(ids, request.keep, longest)
                dropped += more
                stats.context_shifts += 1
            cached = self._cached_ids.reuse(ids, partial(resumable, self.backend))
            if left == request.max_tokens:
                stats.cached_tokens = cached
            room = min(left, longest - len(ids) + 1)
            if room < 1:
                raise no_room(longest, len(ids))
            rules = request.rules_after(stats.context_shifts)
            chooser = Chooser(self.backend, rules, ids, dropped)
            job = Job(ids[cached:], cached, room)
            with _closed(strategy.run(job, chooser, stats.counts)) as runs:
                for run in runs:
                    ids += run
                    left -= len(run)
                    self._cached_ids.extend(ids[: len(ids) - chooser.uncached])
                    if chooser.ended:
                        stats.finish = "stop"
                    yield run
            if chooser.ended or not left or request.keep is None:
                return


@contextmanager
def _closed(runs: Iterator[list[int]]) -> Iterator[Iterator[list[int]]]:
    """Close an iterator at the end of a block, rather than whenever it is garbage-collected."""
    try:
        yield runs
    finally:
        close = getattr(runs, "close", None)
        if close is not None:
            close()
