"""What a loaded model computes of given text or ids: tokens, logits and probabilities.

`Model` adds what generates text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from rdrr_format.errors import GenerationError, ManifestError

from rdrr._arguments import prompt_ids, text_list, token_ids
from rdrr._loaded_package import LoadedPackage
from rdrr._probabilities import Loglikelihood, loglikelihood

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr._ranking import RankPrompt

_LOGITS_BYTES = 1 << 28
"""Bytes of logits that are fetched from a backend at once."""


class ScoringModel(LoadedPackage):
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

    def embed(
        self, texts: str | Sequence[str], *, prompt: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the embeddings of texts, float32 [number of texts, width].

        Args:
            texts: One text or several.
            prompt: Name of a prompt of the package that is put before each text, like `query`; the
                default one of the package, if it has one, when None.

        Raises:
            ManifestError: The package is no embedding model.
            GenerationError: A text has no tokens, or more than the context holds; or a hidden
                state is not a finite number.
            UsageError: There is no such prompt, or `texts` are no strings.
        """
        import numpy as np

        from rdrr._classification import classifier_of
        from rdrr._embedding import Pooling

        if classifier_of(self.package) is not None:
            raise ManifestError(
                "this model classifies texts and makes no embeddings",
                where=self.package.where,
                hint="use `classify`",
            )
        pooling = Pooling(self.package)
        before = pooling.prompt(prompt)
        ids = [self._ids_of_text(before + text) for text in text_list(texts)]
        skipped = pooling.skipped(before, self.encode, self._codec.tokens_after_text())
        with self._engine.lend() as backend:
            rows = [pooling.pool(states, skipped) for states in _hidden_states(backend, ids)]
        width = pooling.width or self.package.graph.output_size
        return np.stack(rows) if rows else np.empty((0, width), np.float32)

    def classify(self, texts: str | Sequence[str]) -> list[dict[str, float]]:
        """Return the probability of each label for each text, by the names of the labels.

        The probabilities of a text add up to 1 if it has exactly one of the labels. A model that
        was trained for a regression gives its plain values.

        Args:
            texts: One text or several.

        Raises:
            ManifestError: The package does not classify texts.
            GenerationError: A text has no tokens, or more than the context holds; or a hidden
                state is not a finite number.
            UsageError: `texts` are no strings.
        """
        from rdrr._classification import Classification

        head = Classification(self.package)
        ids = [self._ids_of_text(text) for text in text_list(texts)]
        with self._engine.lend() as backend:
            return [head.probabilities(states) for states in _hidden_states(backend, ids)]

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        instruction: str | None = None,
        prompt: RankPrompt | None = None,
    ) -> list[float]:
        """Return how well each text answers a query, from 0 to 1, with a reranking model.

        A model whose classification head has one label reads the query and the text as the pair
        that its tokenizer makes of them, or as the question of `prompt`, and the score is that of
        the label. Other models answer the question, with a token or with the labels `yes` and `no`.

        Args:
            query: The query.
            texts: The texts, in any order.
            instruction: What a text must do to answer a query; that of the prompt when None.
            prompt: The question that the model was trained to answer; the one of Qwen3-Reranker
                when None, unless the model has a head with one label and no instruction is given.

        Raises:
            ManifestError: The model has no output head, no tokens for the two answers, or a
                classification head with several labels.
            GenerationError: A question does not fit the context; or the model computes no finite
                numbers.
            UsageError: `query` or `texts` are no strings.
        """
        from rdrr._classification import classifier_of
        from rdrr._ranking import RankPrompt, scores

        if classifier_of(self.package) is not None:
            return self._rank_by_head(query, texts, instruction, prompt)
        self._check_head()
        asked, (wanted,) = prompt or RankPrompt(), text_list([query])
        encode = self.encode_as_is
        answers = asked.answers(encode)
        questions = [asked.ids(encode, wanted, text, instruction) for text in text_list(texts)]
        for ids in questions:
            self._check_length(ids)
        with self._engine.lend() as backend:
            return scores(backend, questions, answers)

    def _rank_by_head(
        self,
        query: str,
        texts: Sequence[str],
        instruction: str | None,
        prompt: RankPrompt | None,
    ) -> list[float]:
        """Return the scores of a model with a classification head, see `rank`."""
        from rdrr._classification import Classification
        from rdrr._ranking import RankPrompt

        head, (wanted,) = Classification(self.package), text_list([query])
        head.check_ranks()
        if prompt is None and instruction is None and not head.has_answers:
            ids = [self._codec.encode_pair(wanted, text) for text in text_list(texts)]
        else:
            asked, encode = prompt or RankPrompt(), self.encode_as_is
            ids = [asked.ids(encode, wanted, text, instruction) for text in text_list(texts)]
        for tokens in ids:
            self._check_length(tokens)
        with self._engine.lend() as backend:
            return [head.score(states) for states in _hidden_states(backend, ids)]

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


def _hidden_states(
    backend: Backend, texts: Sequence[Sequence[int]]
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the hidden states of the token ids of each text, [tokens, hidden size].

    Raises:
        GenerationError: One of them is not a finite number.
    """
    from rdrr_runtime.sampling.finite import check_hidden

    return (check_hidden(backend.hidden(ids)) for ids in texts)


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
