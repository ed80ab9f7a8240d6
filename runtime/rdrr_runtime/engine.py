"""Token ids in, token ids out. It does not know text: that is `rdrr_runtime.text.tokenizer`.

The engine checks that a generation fits the context, picks the strategy, and times what the
published tables time: time to first token, prefill and decode. It knows what the key-value cache
holds: of a prompt that begins with it only the rest is run.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError, UsageError
from rdrr_format.options import check_count

from rdrr_runtime.backend import Backend, BatchingBackend, StoringBackend
from rdrr_runtime.decode.autoregressive import Autoregressive
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.batch import BatchSequence, run_batch
from rdrr_runtime.decode.chooser import Chooser
from rdrr_runtime.decode.request import Request, check_prompt, no_room
from rdrr_runtime.decode.rules import Constraint, TokenRules
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.decode.strategy import Strategy
from rdrr_runtime.decode.turns import Turns
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.held_ids import HeldIds, check_keep, shifted

SLOTS = 256
"""Slots of a sequence of a batch are a multiple, so that the next batch fits them too."""


class Engine:
    """Runs generations on one backend, one at a time, in whichever threads they are called.

    Args:
        backend: The loaded model.
        eos_token_ids: Ids that end a sequence.
        vocab_size: Ids must lie below it.
        turns: Who may use the backend.
    """

    def __init__(
        self,
        backend: Backend,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        turns: Turns | None = None,
    ) -> None:
        self.backend = backend
        self.turns = turns if turns is not None else Turns()
        self._eos = frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        self._held = HeldIds()

    @contextmanager
    def lend(self) -> Iterator[Backend]:
        """Let a caller use the backend for the length of a block; then its cache counts as empty.

        Raises:
            GenerationError: See `Turns.begin`.
        """
        with self.turns.exclusive():
            self._held = HeldIds()
            yield self.backend

    def save_cache(self, ids: Sequence[int]) -> tuple[int, dict[str, npt.NDArray[np.uint8]]]:
        """How many first `ids` the cache holds, and their keys and values.

        Raises:
            GenerationError: See `Turns.begin`.
        """
        if not isinstance(self.backend, StoringBackend):
            return 0, {}
        with self.turns.exclusive():
            slots = self._held.shared(ids)
            return slots, self.backend.read_cache(slots)

    def load_cache(
        self, ids: Sequence[int], slots: int, cache: Mapping[str, npt.NDArray[np.uint8]]
    ) -> None:
        """Put keys and values of the first `slots` of `ids` into the cache.

        Raises:
            GenerationError: They do not fit the context.
            FormatError: They are of another model.
        """
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
                self._held.extend(ids[:slots])

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        sampling: SamplingParams | None = None,
        interval: int = 8,
        stats: GenerationStats | None = None,
        logprobs: Logprobs | None = None,
        constraint: Constraint | None = None,
        strategy: Strategy | None = None,
        stop_ids: Sequence[int] = (),
        context_shift: int | None = None,
    ) -> Generator[list[int], None, None]:
        """Runs of new ids, each as soon as it is known.

        Args:
            prompt: Token ids, at least one.
            max_tokens: Most new tokens; fewer when the context fills up before.
            sampling: How tokens are chosen; greedy when None.
            interval: Tokens between two readbacks from the device.
            stats: Filled while the iterator runs.
            logprobs: Filled while the iterator runs.
            constraint: What may come.
            strategy: The order of forward passes; one token after the other, read back every
                `interval`, when None.
            stop_ids: Ids that end the sequence besides those of the model.
            context_shift: First ids to keep when the context is full: the older half of the others
                is dropped, what is left is run anew, and the sequence goes on; a prompt that is
                too long is shortened alike. None ends the sequence there.

        Raises:
            GenerationError: The prompt is empty, has an unknown id, or does not fit the context;
                while iterating, another call has ended the generation (see `Turns`).
            UsageError: `max_tokens` or `interval` is not positive, a biased id is unknown, or
                `context_shift` is more than half of the context, or the strategy cannot choose
                tokens so.
        """
        sampling = sampling or SamplingParams()
        sampling.check_ids(self._vocab_size)
        stats = stats if stats is not None else GenerationStats()
        check_count("max_tokens", max_tokens)
        check_count("interval", interval)
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
    ) -> list[BatchSequence]:
        """Continue several prompts, together where the backend can, else one after the other.

        Args:
            prompts: Token ids of each, at least one.
            max_tokens: Most new tokens of each.
            sampling: How tokens are chosen; each sequence is the one that its prompt gives alone.
            interval: Tokens between two readbacks from the device.
            stop_ids: Ids that end a sequence besides those of the model.
            sequences: Most sequences in a pass; the others wait.
            counts: Filled: a forward is a pass over all rows.

        Raises:
            GenerationError: A prompt is empty, has an unknown id, or does not fit the context.
            UsageError: An option is out of range, or the cache's type has no batches.
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
        if not isinstance(self.backend, BatchingBackend):
            return self._one_by_one(prompts, max_tokens, sampling, stop_ids, counts or Counts())
        longest = max(map(len, prompts)) + max_tokens
        slots = min(self.backend.info.context, -(-longest // SLOTS) * SLOTS)
        with self.turns.exclusive():
            return run_batch(
                self.backend.batch(min(sequences, len(prompts)), slots),
                prompts,
                max_tokens=max_tokens,
                sampling=sampling,
                interval=interval,
                stop_ids=self._eos.union(stop_ids),
                counts=counts or Counts(),
            )

    def _one_by_one(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: SamplingParams,
        stop_ids: Sequence[int],
        counts: Counts,
    ) -> list[BatchSequence]:
        every = []
        for prompt in prompts:
            stats = GenerationStats(counts=counts)
            runs = self.generate(
                prompt, max_tokens=max_tokens, sampling=sampling, stats=stats, stop_ids=stop_ids
            )
            new = [one for run in runs for one in run]
            every.append(BatchSequence(prompt, max_tokens - len(new), new, stats.finish))
        return every

    def _check(self, prompt: Sequence[int], *, shifts: bool = False) -> None:
        context = self.backend.info.context
        check_prompt(prompt, context=context, vocab_size=self._vocab_size, shifts=shifts)

    def _timed(self, request: Request, stats: GenerationStats) -> Generator[list[int], None, None]:
        """Yield the runs of a generation, for as long as it has the backend's turn."""
        stats.prompt_tokens = len(request.prompt)
        runs = self._runs(request, stats)
        turn = self.turns.begin(runs.close)
        try:
            start = time.perf_counter()
            while True:
                with turn.step():
                    ids = next(runs, None)
                if ids is None:
                    break
                stats.total_seconds = time.perf_counter() - start
                if not stats.new_tokens:
                    stats.first_token_seconds = stats.total_seconds
                stats.new_tokens += len(ids)
                yield ids
        finally:
            turn.end()
        if stats.finish == "running":
            stats.finish = "length" if stats.new_tokens >= request.max_tokens else "context"

    def _runs(self, request: Request, stats: GenerationStats) -> Generator[list[int], None, None]:
        """Yield the runs of one context after the other, as often as it shifts."""
        strategy = request.strategy
        # The last id of a sequence needs no slot of its own, unless the strategy runs it.
        longest = self.backend.info.context - strategy.slots_of_last
        ids, dropped, left = list(request.prompt), list[int](), request.max_tokens
        while True:
            if request.keep is not None and len(ids) > longest:
                ids, more = shifted(ids, request.keep, longest)
                dropped += more
                stats.context_shifts += 1
            cached = self._held.reuse(ids)
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
                    self._held.extend(ids[:-1])
                    if chooser.ended:
                        stats.finish = "stop"
                    yield run
            if chooser.ended or not left or request.keep is None:
                return


@contextmanager
def _closed(runs: Iterator[list[int]]) -> Iterator[Iterator[list[int]]]:
    """Close an iterator at the end of a block: when it is collected is up to the interpreter."""
    try:
        yield runs
    finally:
        close = getattr(runs, "close", None)
        if close is not None:
            close()
