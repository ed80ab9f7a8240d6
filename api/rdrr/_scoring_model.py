"""What a loaded model computes of given ids: logits and probabilities.

`Model` adds what generates text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from rdrr_format.errors import GenerationError
from rdrr_format.misuse import explained

from rdrr._arguments import prompt_ids, token_ids
from rdrr._probabilities import Loglikelihood, loglikelihood
from rdrr._text_model import TextModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

_LOGITS_BYTES = 1 << 28
"""Bytes of logits that are fetched from a backend at once."""


@explained
class ScoringModel(TextModel):
    """A loaded package that computes logits, embeddings, labels, scores and probabilities."""

    def logits(self, ids: Sequence[int], *, stepwise: bool = False) -> npt.NDArray[np.float32]:
        """Return the logits after each of `ids` (teacher forcing), float32 [len(ids), vocab].

        Args:
            ids: Token ids of a sequence, from its beginning.
            stepwise: Run one token per pass, with the kernels of decode, instead of many per pass,
                with the kernels of prefill.

        Raises:
            GenerationError: There are no ids, or more than the context holds, or one of them is
                outside the vocabulary.
            UsageError: `ids` are no token ids.
        """
        import numpy as np
        from rdrr_runtime.decode.request import check_prompt

        self._check_head()
        context = self.info.context
        ids = token_ids(ids, "`ids`")
        if not 0 < len(ids) <= context:
            raise GenerationError(
                "the ids do not fit the context",
                expected=f"1 to {context} ids",
                found=len(ids),
                hint="load the model with a larger context",
            )
        vocab_size = self.package.manifest.architecture.vocab_size
        check_prompt(ids, context=context + 1, vocab_size=vocab_size)
        with self._engine.lend() as backend:
            if not stepwise:
                return backend.logits(ids, 0, all_rows=True)
            return np.concatenate([backend.logits([token], base) for base, token in enumerate(ids)])

    def loglikelihoods(
        self, prompt: str | Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[Loglikelihood]:
        """Return how probable each continuation of a prompt is; the prompt is run once for all.

        Args:
            prompt: Text, or token ids.
            continuations: Token ids of each continuation.

        Raises:
            GenerationError: The prompt is empty, the prompt and a continuation do not fit the
                context, or the logits are not finite numbers.
            UsageError: The prompt or a continuation is not made of token ids.
        """
        from rdrr_runtime.decode.request import check_prompt

        self._check_head()
        ids = prompt_ids(prompt, self.encode)
        wanted = [token_ids(new, "a continuation") for new in continuations]
        vocab_size = self.package.manifest.architecture.vocab_size
        check_prompt(ids, context=self.info.context, vocab_size=vocab_size)
        for new in wanted:  # the last token of a sequence is not run, so it takes no slot
            check_prompt([*ids, *new], context=self.info.context + 1, vocab_size=vocab_size)
        # Rows of logits are float32, so this many of them take `_LOGITS_BYTES`.
        rows = max(1, _LOGITS_BYTES // (4 * vocab_size))
        with self._engine.lend() as backend:
            if len(ids) > 1:
                backend.fill(ids[:-1], 0)
            return [_loglikelihood(backend, ids, new, rows) for new in wanted]

    def _prompt_logprobs(self, ids: Sequence[int], top: int) -> list[TokenLogprobs]:
        """Return the log-probabilities of each id of a prompt but the first.

        Args:
            ids: Token ids that fit the context.
            top: Number of most probable tokens of each position.
        """
        from rdrr_runtime.sampling.finite import check_logits
        from rdrr_runtime.sampling.logprobs import token_logprobs

        rows = max(1, _LOGITS_BYTES // (4 * self.package.manifest.architecture.vocab_size))
        recorded: list[TokenLogprobs] = []
        with self._engine.lend() as backend:
            for start in range(0, len(ids) - 1, rows):
                run = ids[start : min(start + rows, len(ids) - 1)]
                logits = check_logits(backend.logits(run, start, all_rows=True))
                following = ids[start + 1 : start + 1 + len(run)]
                recorded += map(token_logprobs, logits, following, repeat(top))
        return recorded


def _loglikelihood(
    backend: Backend, prompt: Sequence[int], continuation: Sequence[int], rows: int
) -> Loglikelihood:
    """Return the log-likelihood of a continuation whose prompt, but for its last id, is cached.

    Args:
        backend: Holds the keys and values of the prompt.
        prompt: Token ids, at least one.
        continuation: Token ids.
        rows: Rows of logits that are fetched at once.
    """
    from rdrr_runtime.sampling.finite import check_logits

    # Each id predicts the next one: the last of the prompt counts, that of the continuation not.
    ids, first = [prompt[-1], *continuation[:-1]], len(prompt) - 1
    parts = []
    for start in range(0, len(continuation), rows):
        logits = backend.logits(ids[start : start + rows], first + start, all_rows=True)
        parts.append(loglikelihood(check_logits(logits), continuation[start : start + rows]))
    return Loglikelihood(sum(part.total for part in parts), all(part.is_greedy for part in parts))
