"""What a loaded model computes of given text or ids: tokens, logits and probabilities.

`Model` adds what generates text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.closing import Closing
from rdrr_format.errors import GenerationError, ManifestError
from rdrr_format.html_tables import facts_table
from rdrr_format.printing import printable

from rdrr._arguments import prompt_ids, text_list, token_ids
from rdrr._backends import OpenedBackend
from rdrr._chat_template import open_template
from rdrr._load_options import LoadOptions
from rdrr._probabilities import Loglikelihood, loglikelihood

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend, BackendInfo
    from rdrr_runtime.text.chat_template import ChatTemplate
    from rdrr_runtime.text.tokenizer import TextCodec

    from rdrr._ranking import RankPrompt

_LOGITS_BYTES = 1 << 28
"""Bytes of logits that are fetched from a backend at once."""


class ScoringModel(Closing):
    """A package on a backend, with its tokenizer and chat templates.

    Attributes:
        package: The package that was loaded.
        reason: One line that says which backend runs it, why, and how to choose the other one.
        unhonoured_hints: One line for each kernel hint that the backend does not honour.
        unchecked: One line for each check of the shards that could not be done; usually none.
    """

    def __init__(
        self, package: Package, opened: OpenedBackend, options: LoadOptions | None = None
    ) -> None:
        from rdrr_runtime.decode.turns import Turns
        from rdrr_runtime.engine import Engine

        self.package = package
        self.reason = opened.reason
        self.unhonoured_hints = opened.unhonoured
        self.unchecked = opened.unchecked
        self._opened = opened
        self._codec = _codec(package)
        self._templates: dict[tuple[str | None, bool], ChatTemplate] = {}
        manifest = package.manifest
        vocabulary = manifest.architecture.vocab_size
        turns = Turns((options or LoadOptions()).busy_timeout)
        self._engine = Engine(opened.backend, manifest.eos_token_ids, vocabulary, turns)

    @property
    def info(self) -> BackendInfo:
        """The backend, its adapter, the context length and the memory in use."""
        return self._opened.backend.info

    def chat_template(self, file: str | Path | None = None, *, tools: bool = False) -> ChatTemplate:
        """Return the chat template of `file`, or of the package when None; see `chat`."""
        key = (None if file is None else str(file), tools)
        if key not in self._templates:
            self._templates[key] = open_template(self.package, file=file, tools=tools)
        return self._templates[key]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, with the special tokens that a prompt begins with."""
        return self._codec.encode(text)

    def encode_as_is(self, text: str) -> list[int]:
        """Return the token ids of a text to which no special tokens are added."""
        return self._codec.encode_as_is(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self._codec.decode(ids)

    def logits(self, ids: Sequence[int], *, stepwise: bool = False) -> npt.NDArray[np.float32]:
        """Return the logits after each of `ids` (teacher forcing), float32 [len(ids), vocab].

        Args:
            ids: Token ids of a sequence, from its beginning.
            stepwise: Run one token per pass, with the kernels of decode, instead of many per pass,
                with the kernels of prefill.

        Raises:
            GenerationError: There are no ids, or more than the context holds.
        """
        import numpy as np

        self._check_head()
        context = self.info.context
        if not 0 < len(ids) <= context:
            raise GenerationError(
                "the ids do not fit the context",
                expected=f"1 to {context} ids",
                found=len(ids),
                hint="load the model with a larger context",
            )
        with self._engine.lend() as backend:
            if not stepwise:
                return backend.logits(ids, 0, all_rows=True)
            return np.concatenate([backend.logits([one], base) for base, one in enumerate(ids)])

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
        from rdrr_runtime.sampling.finite import check_hidden

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
            rows = [pooling.pool(check_hidden(backend.hidden(one)), skipped) for one in ids]
        width = pooling.width or self.package.manifest.architecture.hidden_size
        return np.stack(rows) if rows else np.empty((0, width), np.float32)

    def classify(self, texts: str | Sequence[str]) -> list[dict[str, float]]:
        """Return the probability of each label for each text, by the names of the labels.

        The probabilities of a text add up to 1 if it has exactly one of the labels. A model that
        was trained for a regression gives its plain values.

        Args:
            texts: One text or several.

        Raises:
            ManifestError: The package does not classify texts.
            GenerationError: A text has no tokens, or more than the context holds.
            UsageError: `texts` are no strings.
        """
        from rdrr._classification import Classification

        head = Classification(self.package)
        ids = [self._ids_of_text(text) for text in text_list(texts)]
        with self._engine.lend() as backend:
            return [head.probabilities(backend.hidden(one)) for one in ids]

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        instruction: str | None = None,
        prompt: RankPrompt | None = None,
    ) -> list[float]:
        """Return how well each text answers a query, from 0 to 1, with a reranking model.

        A model with a classification head reads the query and the text as the pair that its
        tokenizer makes of them, or as the question of `prompt`; its score is that of its one label.
        Other models answer the question with a token.

        Args:
            query: The query.
            texts: The texts, in any order.
            instruction: What a text must do to answer a query; that of the prompt when None.
            prompt: The question that the model was trained to answer; the one of Qwen3-Reranker
                when None, unless the model has a classification head and no instruction is given.

        Raises:
            ManifestError: The model has no output head, no tokens for the two answers, or a
                classification head with several labels.
            GenerationError: A question does not fit the context.
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
        if prompt is None and instruction is None:
            ids = [self._codec.encode_pair(wanted, text) for text in text_list(texts)]
        else:
            asked, encode = prompt or RankPrompt(), self.encode_as_is
            ids = [asked.ids(encode, wanted, text, instruction) for text in text_list(texts)]
        for one in ids:
            self._check_length(one)
        with self._engine.lend() as backend:
            return [head.score(backend.hidden(one)) for one in ids]

    def _check_head(self) -> None:
        """Check that the model predicts tokens.

        Raises:
            ManifestError: It is an embedding model without an output head.
        """
        if not has_head(self.package):
            raise ManifestError(
                "this embedding model has no output head or no causal attention, so it predicts no "
                "tokens",
                where=self.package.where,
                hint="use `embed`, or `classify` if it has labels",
            )

    def _ids_of_text(self, text: str) -> list[int]:
        """Return the token ids of a text that is run as a whole."""
        ids = self.encode(text)
        self._check_length(ids)
        return ids

    def _check_length(self, ids: Sequence[int]) -> None:
        context = self.info.context
        if not 0 < len(ids) <= context:
            raise GenerationError(
                "a text does not fit the context",
                expected=f"1 to {context} tokens",
                found=f"{len(ids)} tokens",
                hint="split the text" if ids else "leave empty texts out",
            )

    def loglikelihoods(
        self, prompt: str | Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[Loglikelihood]:
        """Return how probable each continuation of a prompt is; the prompt is run once for all.

        Args:
            prompt: Text, or token ids.
            continuations: Token ids of each continuation.

        Raises:
            GenerationError: The prompt is empty, or the prompt and a continuation do not fit the
                context.
            UsageError: The prompt or a continuation is not made of token ids.
        """
        from rdrr_runtime.decode.request import check_prompt

        self._check_head()
        ids = prompt_ids(prompt, self.encode)
        wanted = [token_ids(one, "a continuation") for one in continuations]
        vocab_size = self.package.manifest.architecture.vocab_size
        check_prompt(ids, context=self.info.context, vocab_size=vocab_size)
        for one in wanted:  # the last token of a sequence is not run, so it takes no slot
            check_prompt([*ids, *one], context=self.info.context + 1, vocab_size=vocab_size)
        # Rows of logits are float32, so this many of them take `_LOGITS_BYTES`.
        rows = max(1, _LOGITS_BYTES // (4 * vocab_size))
        with self._engine.lend() as backend:
            if len(ids) > 1:
                backend.fill(ids[:-1], 0)
            return [_loglikelihood(backend, ids, one, rows) for one in wanted]

    def close(self) -> None:
        """Free the memory of the model. A running generation ends after its current pass.

        Raises:
            GenerationError: The pass took too long, or this is called from within it.
        """
        if self._engine.turns.close():
            self._release()

    def _release(self) -> None:
        """Free what was loaded; nothing is running any more."""
        self._opened.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.package.manifest.model_id!r}, {self.reason!r})"

    def _repr_html_(self) -> str:
        """Return a table of the model for notebooks."""
        info = self.info
        return facts_table(
            f"Model {printable(self.package.manifest.model_id)}",
            {
                "location": printable(self.package.where),
                "runs on": printable(self.reason),
                "context": f"{info.context:,} tokens",
                "key-value cache": f"{info.kv_bytes:,} bytes, {info.kv_dtype}",
                "weights": f"{info.weights_bytes:,} bytes",
            },
        )


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
    ids, first = [prompt[-1], *continuation[:-1]], len(prompt) - 1
    parts = []
    for start in range(0, len(continuation), rows):
        logits = backend.logits(ids[start : start + rows], first + start, all_rows=True)
        parts.append(loglikelihood(logits, continuation[start : start + rows]))
    return Loglikelihood(sum(one.total for one in parts), all(one.is_greedy for one in parts))


def has_head(package: Package) -> bool:
    """Return whether a model predicts tokens; one that classifies texts does not."""
    manifest = package.manifest
    if not manifest.inference.attention.causal or manifest.inference.output.classifier:
        return False
    is_tied = manifest.inference.output.tie_word_embeddings
    roles = (tensor.role for tensor in manifest.tensors.values())
    return manifest.model_type != "embedding" or is_tied or "lm_head" in roles


def _codec(package: Package) -> TextCodec:
    """Return the tokenizer of a package.

    Raises:
        ManifestError: The package has no tokenizer.
    """
    from rdrr_runtime.text.tokenizer import TextCodec

    content, stated = package.tokenizer_bytes(), package.manifest.tokenizer
    if content is None or stated is None:
        raise ManifestError(
            "the package has no tokenizer",
            where=package.where,
            hint="convert the checkpoint again, with its tokenizer",
        )
    return TextCodec(content, bos_token_id=stated.bos_token_id, add_bos=stated.add_bos_token)
