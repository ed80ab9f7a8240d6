"""What a loaded model computes of whole texts: embeddings, labels, masked tokens and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from rdrr_format.errors import ManifestError
from rdrr_format.misuse import explained
from rdrr_format.options import check_count

from rdrr._arguments import text_list
from rdrr._loaded_package import LoadedPackage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rdrr_format.bounded_tokenizer import Encoded
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.packing import EncodedText

    from rdrr._embedding import Embeddings
    from rdrr._ranking import RankPrompt

Result = TypeVar("Result")

Truncate = bool | int
"""Whether the end of texts that are too long is left out, or the most tokens of a text."""

Progress = Callable[[int, int], None]
"""Called with the number of texts that are done, and of all texts."""


@dataclass(frozen=True)
class TokenLabels:
    """The labels of a token of a text.

    Attributes:
        start: First character of the token in the text.
        end: The character after its last.
        probabilities: Probability of each label.
    """

    start: int
    end: int
    probabilities: dict[str, float]


@explained
class TextModel(LoadedPackage):
    """A loaded package that computes embeddings, labels, masked tokens and scores of texts."""

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        truncate: Truncate = False,
        progress: Progress | None = None,
    ) -> Embeddings:
        """Return the embeddings of texts, float32 [number of texts, width], in their order.

        An encoder runs many texts in one pass, without padding.

        Args:
            texts: One text or several.
            prompt: Name of a prompt of the package that is put before each text, like `query`; the
                default one of the package, if it has one, when None.
            truncate: Leave out the end of texts that do not fit the context, or have more tokens
                than this number; `truncated` of the result says which. Otherwise they are refused.
            progress: Called after each text with the number of texts that are done, and of all.

        Raises:
            ManifestError: The package is no embedding model.
            GenerationError: A text has no tokens, or more than the context holds; or a hidden
                state is not a finite number.
            UsageError: There is no such prompt, or `texts` are no strings.
        """
        import numpy as np

        from rdrr._classification import classifier_of
        from rdrr._embedding import Embeddings, Pooling

        if classifier_of(self.package) is not None:
            raise ManifestError(
                "this model classifies texts and makes no embeddings",
                where=self.package.where,
                hint="use `classify`",
            )
        pooling = Pooling(self.package)
        pooling.check_pools()
        before = pooling.prompt(prompt)
        encoded = self._encoded([before + text for text in text_list(texts)], truncate)
        skipped = pooling.skipped(before, self.encode, self._codec.tokens_after_text())
        means = np.empty((len(encoded), self.package.graph.output_size), np.float32)
        for done, (index, mean) in enumerate(self._means(encoded, pooling.part(skipped)), 1):
            means[index] = mean
            if progress is not None:
                progress(done, len(encoded))
        return Embeddings.of(pooling.finish(means), _truncated(encoded))

    def embed_each(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        truncate: Truncate = False,
        at_once: int = 1024,
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the embedding of each text, in order, without holding all of them in memory.

        Args:
            texts: The texts, which may be produced one by one.
            prompt: See `embed`.
            truncate: See `embed`.
            at_once: Texts that are read, sorted by their length, and run together.

        Raises:
            UsageError: `at_once` is not positive.
        """
        check_count("`at_once`", at_once, minimum=1, maximum=1 << 20)
        waiting = iter(texts)
        while some := list(islice(waiting, at_once)):
            yield from self.embed(some, prompt=prompt, truncate=truncate)

    async def aembed(self, texts: str | Iterable[str], **options: Any) -> Embeddings:
        """Return the embeddings of texts without blocking the event loop; see `embed`."""
        from asyncio import to_thread

        return await to_thread(self.embed, texts, **options)

    def classify(
        self, texts: str | Sequence[str], *, truncate: Truncate = False
    ) -> list[dict[str, float]]:
        """Return the probability of each label for each text, by the names of the labels.

        The probabilities of a text add up to 1 if it has exactly one of the labels. A model that
        was trained for a regression gives its plain values.

        Args:
            texts: One text or several.
            truncate: See `embed`.

        Raises:
            ManifestError: The package does not classify texts.
            GenerationError: A text has no tokens, or more than the context holds; or a hidden
                state is not a finite number.
            UsageError: `texts` are no strings.
        """
        from rdrr._classification import Classification

        head = Classification(self.package)
        head.check_pools()
        encoded = self._encoded(text_list(texts), truncate)
        return _in_order(
            (index, head.probabilities(mean)) for index, mean in self._means(encoded, head.part)
        )

    def classify_tokens(
        self, texts: str | Sequence[str], *, truncate: Truncate = False
    ) -> list[list[TokenLabels]]:
        """Return the labels of each token of each text, with its place; special tokens have none.

        Args:
            texts: One text or several.
            truncate: See `embed`.

        Raises:
            ManifestError: The package does not classify tokens.
            GenerationError: A text has no tokens, or more than the context holds; or a hidden
                state is not a finite number.
            UsageError: `texts` are no strings.
        """
        from rdrr._classification import Classification

        head = Classification(self.package)
        head.check_pools(by_token=True)
        encoded = self._encoded(text_list(texts), truncate)
        return _in_order(
            (index, list(_token_labels(encoded[index], head.of_tokens(states))))
            for index, states in self._hidden_states(encoded)
        )

    def fill_masks(
        self, texts: str | Sequence[str], *, top: int = 5, truncate: Truncate = False
    ) -> list[list[dict[str, float]]]:
        """Return, for each mask of each text, the probabilities of the most probable tokens.

        Args:
            texts: One text or several, with the mask token of the model, such as `[MASK]`.
            top: Number of tokens.
            truncate: See `embed`.

        Raises:
            ManifestError: The package fills in no masks.
            GenerationError: A text has no mask, or more tokens than the context holds.
            UsageError: `texts` are no strings, or `top` is not positive.
        """
        from rdrr._classification import MaskHead

        check_count("`top`", top, minimum=1, maximum=1 << 16)
        head = MaskHead(self.package)
        encoded = self._encoded(text_list(texts), truncate)
        places = [head.places(text.ids) for text in encoded]
        return _in_order(
            (index, head.most_probable(states[places[index]], top, self._codec.token))
            for index, states in self._hidden_states(encoded)
        )

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        instruction: str | None = None,
        prompt: RankPrompt | None = None,
        truncate: Truncate = False,
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
            truncate: See `embed`; only for models that read pairs.

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
            return self._rank_by_head(query, texts, instruction, prompt, truncate)
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
        truncate: Truncate,
    ) -> list[float]:
        """Return the scores of a model with a classification head, see `rank`."""
        from rdrr_format.bounded_tokenizer import Encoded

        from rdrr._classification import Classification
        from rdrr._ranking import RankPrompt

        head, (wanted,) = Classification(self.package), text_list([query])
        head.check_ranks()
        if prompt is None and instruction is None and not head.has_answers:
            encoded = self._encoded([(wanted, text) for text in text_list(texts)], truncate)
        else:
            asked, encode = prompt or RankPrompt(), self.encode_as_is
            ids = [asked.ids(encode, wanted, text, instruction) for text in text_list(texts)]
            encoded = [Encoded(tokens, [0] * len(tokens), False, [], []) for tokens in ids]
            for tokens in ids:
                self._check_length(tokens)
        return _in_order(
            (index, head.score(mean)) for index, mean in self._means(encoded, head.part)
        )

    def _encoded(self, texts: Sequence[str | tuple[str, str]], truncate: Truncate) -> list[Encoded]:
        """Return the tokens of texts or pairs, each of which fits the context.

        Raises:
            GenerationError: A text has no tokens, or more than the context holds.
            UsageError: `truncate` is out of range.
        """
        context = self.info.context
        limit = None if truncate is False else context
        if type(truncate) is int:
            check_count("`truncate`", truncate, minimum=1, maximum=context)
            limit = truncate
        encoded = self._codec.encode_texts(texts, limit)
        for text in encoded:
            self._check_length(text.ids)
        return encoded

    def _hidden_states(
        self, texts: Sequence[Encoded]
    ) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield the index of each text and its hidden states, [tokens, hidden size]; see `_run`."""
        return self._run(texts, lambda backend, given: backend.hidden(given))

    def _means(
        self, texts: Sequence[Encoded], part: slice
    ) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield the index of each text and the mean of a part of its hidden states; see `_run`."""
        return self._run(texts, lambda backend, given: backend.means(given, part))

    def _run(
        self,
        texts: Sequence[Encoded],
        run: Callable[[Backend, Sequence[EncodedText]], Iterator[npt.NDArray[np.float32]]],
    ) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield the index of each text and its result.

        The longest texts come first. The backend is busy until the last text.

        Raises:
            GenerationError: A hidden state is not a finite number.
        """
        from rdrr_runtime.packing import EncodedText
        from rdrr_runtime.sampling.finite import check_hidden

        order = sorted(range(len(texts)), key=lambda index: -len(texts[index].ids))
        has_types = self.package.manifest.inference.output.token_types is not None
        given = [
            EncodedText(texts[index].ids, texts[index].types if has_types else None)
            for index in order
        ]
        with self._engine.lend() as backend:
            for index, states in zip(order, run(backend, given), strict=True):
                yield index, check_hidden(states)


def _truncated(encoded: Sequence[Encoded]) -> tuple[int, ...]:
    return tuple(index for index, text in enumerate(encoded) if text.is_truncated)


def _in_order(results: Iterable[tuple[int, Result]]) -> list[Result]:
    """Return results in the order of the texts that they belong to."""
    return [result for _, result in sorted(results, key=lambda pair: pair[0])]


def _token_labels(
    text: Encoded, probabilities: Sequence[dict[str, float]]
) -> Iterator[TokenLabels]:
    for (start, end), special, labels in zip(text.spans, text.special, probabilities, strict=True):
        if not special:
            yield TokenLabels(start, end, labels)
