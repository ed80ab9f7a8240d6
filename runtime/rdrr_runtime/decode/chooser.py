"""The choice of tokens: greedy or sampled, with or without a constraint and log-probabilities.

A strategy says which rows to run, in which order. The chooser runs them on the backend and chooses
their tokens, in the cheapest way that the generation allows. If only the most probable token is
wanted, the logits never leave the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError

from rdrr_runtime.backend import Backend, FeedingBackend, MaskFillingBackend
from rdrr_runtime.decode.base import ChosenTokens, Picks, until_stop
from rdrr_runtime.decode.drafts import Proposal
from rdrr_runtime.decode.host_sampling import HostSampling, sampling_backend
from rdrr_runtime.decode.interval import Interval
from rdrr_runtime.decode.mask_stream import DeviceMasks, HostMasks, MaskStream
from rdrr_runtime.decode.probabilities import Allowed, ProbabilitySampler
from rdrr_runtime.decode.rules import TokenRules
from rdrr_runtime.decode.stream import BlockingFeed, Stream
from rdrr_runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from rdrr_runtime.sampling.masks import MaskRules, entropies
from rdrr_runtime.sampling.sampler import Sampler

F32 = npt.NDArray[np.float32]


class Chooser:
    """The chooser of one generation: it runs rows and chooses their tokens.

    Args:
        backend: The model.
        rules: How tokens are chosen.
        ids: The sequence so far, as far as it is in the context.
        dropped: Ids that context shifts dropped from the context; penalties still count them.

    Attributes:
        backend: The model; a strategy may call it to fill the cache.
        rules: How tokens are chosen.
        ids: The sequence in the context, which grows as tokens are delivered.
        ended: Whether a delivered token has ended the sequence.
        uncached: Last ids of the sequence that the cache does not hold yet.
    """

    def __init__(
        self, backend: Backend, rules: TokenRules, ids: Sequence[int], dropped: Sequence[int] = ()
    ) -> None:
        self.backend, self.rules = backend, rules
        self.ids = list(ids)
        self.ended = False
        self.uncached = 1
        self._dropped = list(dropped)
        self._sampler: Sampler | None = None
        self._probabilities: ProbabilitySampler | None = None

    @property
    def draft_sampler(self) -> ProbabilitySampler | None:
        """The sampler for draft tokens; None if the draft takes the most probable tokens."""
        return None if self.rules.sampling.is_greedy else self._by_probability()

    def stream(
        self, ids: Sequence[int], base: int, *, interval: Interval, ahead: int | None
    ) -> Stream:
        """Return a stream of the tokens after `ids`, one forward pass each.

        Args:
            ids: Token ids to run first, at least one.
            base: Tokens already in the cache.
            interval: Tokens between two readbacks, or `auto`.
            ahead: Passes to submit before the ids of earlier passes are read back; None for as many
                as the backend recommends.
        """
        rules, backend = self.rules, self.backend
        if backend.info.waits_for_ids:
            interval, ahead = 1, 0
        if rules.on_device:
            if ahead != 0 and isinstance(backend, FeedingBackend):
                ahead = backend.ahead if ahead is None else ahead
                return Stream(backend.feed(ids, base), ChosenTokens, interval, ahead)
            return Stream(BlockingFeed(backend.greedy, ids, base), ChosenTokens, interval, 0)
        source = sampling_backend(backend)
        top = None if rules.logprobs is None else rules.logprobs.top
        masked = rules.constraint is not None
        source.begin(rules.sampling, self._seen(), masked=masked, logprobs=top)

        def read(new: list[int]) -> ChosenTokens:
            if masked:
                self._accept(new[0])
            return ChosenTokens(new, () if top is None else source.take_logprobs())

        def sample_masked(pending: Sequence[int], at: int, count: int) -> list[int]:
            assert count == 1, "a mask depends on the token before it"
            return source.sample_masked(pending, at, self._mask)

        if masked:
            return Stream(BlockingFeed(sample_masked, ids, base), read, 1, 0)
        if ahead != 0 and isinstance(source, FeedingBackend):
            ahead = source.ahead if ahead is None else ahead
            feed = source.feed(ids, base, sampled=True)
            return Stream(feed, read, interval, ahead)
        interval = 1 if isinstance(source, HostSampling) else interval
        return Stream(BlockingFeed(source.sample, ids, base), read, interval, 0)

    def verify(self, ids: Sequence[int], base: int, draft: Proposal) -> ChosenTokens:
        """Verify draft tokens after `ids` in one pass.

        Args:
            ids: Token ids to run before the draft tokens, at least one.
            base: Tokens already in the cache.
            draft: Draft tokens; there may be none.

        Returns:
            The accepted draft tokens and the model's own token after them. They have the same
            distribution as tokens chosen without a draft; under greedy decoding they are the same.
        """
        if self.rules.on_device:
            return ChosenTokens(self._verify_on_device(ids, base, draft.ids))
        chosen, logprobs, seen = list[int](), list[TokenLogprobs](), self._seen()
        for at, row in enumerate(self._rows(ids, base, draft.ids)):
            token_id, accepted = self._choose(row, seen, draft, at)
            chosen.append(token_id)
            seen.append(token_id)
            logprobs += self._describe(row, token_id)
            if self._accept(token_id) or not accepted:
                break
        return ChosenTokens(chosen, logprobs)

    def pick(
        self,
        ids: Sequence[int],
        base: int,
        *,
        last_n: int,
        positions: Sequence[int],
        scaled: bool = False,
    ) -> Picks:
        """Choose a token for each of the last `last_n` rows of one pass.

        The tokens are chosen independently: penalties count only the sequence so far, not the
        other rows.

        Args:
            ids: Token ids; row r is stored in slot base + r and attends to the slots up to it.
            base: Tokens already in the cache.
            last_n: Number of last rows to choose a token for.
            positions: Position of each row in the sequence, for rope.
            scaled: Whether to compute the entropies after dividing the logits by the temperature.
        """
        if self.rules.on_device:
            picked, entropy = self.backend.window_picks(
                ids, base, last_n=last_n, positions=positions
            )
            return Picks(picked, entropy.tolist())
        logits = self.backend.window_logits(ids, base, last_n=last_n, positions=positions)
        seen = self._seen()
        chosen = [self._by_noise().choose(row, seen) for row in logits]
        logprobs = [
            logprob
            for row, token in zip(logits, chosen, strict=True)
            for logprob in self._describe(row, token)
        ]
        if scaled:
            logits = logits / np.float32(self.rules.sampling.temperature)
        return Picks(chosen, entropies(logits).tolist() if last_n else [], logprobs)

    def masks(self, base: int, rules: MaskRules, count: int, *, scaled: bool = False) -> MaskStream:
        """Return passes that fill masks after the sequence, which is in the cache.

        Args:
            base: Tokens in the cache.
            rules: The window, and which masks a pass fills.
            count: Number of tokens that the sequence may still get, at least one.
            scaled: Whether to compute the entropies after dividing the logits by the temperature.
        """
        if self.rules.on_device and isinstance(self.backend, MaskFillingBackend):
            feed = self.backend.mask_feed(base, rules, count)
            if feed is not None:
                return DeviceMasks(feed, rules.window)
        return HostMasks(self.pick, rules, base, count, scaled=scaled)

    def deliver(self, chosen: ChosenTokens) -> list[int]:
        """Append chosen tokens to the sequence and return the ids that were appended.

        Tokens after a stop id are dropped. `ended` is set after a stop id, and when the constraint
        is complete.
        """
        ids, stopped = until_stop(chosen.ids, self.rules.stop_ids)
        constraint = self.rules.constraint
        self.ended = stopped or (constraint is not None and constraint.complete)
        self.ids += ids
        if self.rules.logprobs is not None:
            self.rules.logprobs.tokens += chosen.logprobs[: len(ids)]
        return ids

    def _verify_on_device(self, ids: Sequence[int], base: int, draft: list[int]) -> list[int]:
        if not draft:
            return self.backend.greedy(ids, base, 1)
        picks, _ = self.backend.window_picks([*ids, *draft], base, last_n=len(draft) + 1)
        pairs = enumerate(zip(draft, picks, strict=False))
        wrong = next((at for at, (proposed, best) in pairs if proposed != best), len(draft))
        return picks[: wrong + 1]

    def _rows(self, ids: Sequence[int], base: int, draft: list[int]) -> F32:
        """Return the logits after `ids` and after each draft token, f32 [len(draft) + 1, vocab]."""
        if not draft:
            return self.backend.logits(ids, base)
        return self.backend.window_logits([*ids, *draft], base, last_n=len(draft) + 1)

    def _choose(self, row: F32, seen: Sequence[int], draft: Proposal, at: int) -> tuple[int, bool]:
        """Return the token chosen for a row, and whether it is the draft token of that row."""
        sampler = self._by_probability()
        target = sampler.probabilities(row, seen, self._allowed(len(row)))
        if at == len(draft.ids):
            return sampler.sample(target), False
        proposed = None if draft.probabilities is None else draft.probabilities[at]
        token_id = sampler.verify(draft.ids[at], target, proposed)
        return token_id, token_id == draft.ids[at]

    def _describe(self, row: F32, token_id: int) -> list[TokenLogprobs]:
        count = self.rules.logprobs
        return [] if count is None else [token_logprobs(row, token_id, count.top)]

    def _seen(self) -> list[int]:
        return [*self._dropped, *self.ids]

    def _by_probability(self) -> ProbabilitySampler:
        if self._probabilities is None:
            self._probabilities = ProbabilitySampler.make(self.rules.sampling)
        return self._probabilities

    def _by_noise(self) -> Sampler:
        if self._sampler is None:
            self._sampler = Sampler(self.rules.sampling)
        return self._sampler

    def _mask(self) -> npt.NDArray[np.uint32]:
        assert self.rules.constraint is not None
        mask = self.rules.constraint.mask()
        if not mask.any():
            raise GenerationError("no token satisfies the constraint")
        return mask

    def _allowed(self, vocabulary: int) -> Allowed:
        if self.rules.constraint is None:
            return None
        bits = np.unpackbits(self._mask().view(np.uint8), bitorder="little")
        return bits[:vocabulary].astype(bool)

    def _accept(self, token_id: int) -> bool:
        """Advance the constraint by a token; return whether the sequence ends with it."""
        constraint = self.rules.constraint
        if token_id in self.rules.stop_ids:
            return True
        if constraint is None:
            return False
        constraint.accept(token_id)
        return constraint.complete
