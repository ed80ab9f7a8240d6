"""A loaded model, which joins a package, a backend and a tokenizer."""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

from rdrr_format.errors import GenerationError, ManifestError, UsageError
from rdrr_format.html_tables import facts_table
from rdrr_format.locations import local_path
from rdrr_format.options import fill
from rdrr_format.printing import printable
from rdrr_runtime.sampling.params import SamplingKeywords, SamplingParams

from rdrr._arguments import prompt_ids, stop_strings, token_ids
from rdrr._arguments import prompts as read_prompts
from rdrr._async_generation import AsyncGeneration, TaskQueue
from rdrr._backends import OpenedBackend
from rdrr._chat_template import open_template
from rdrr._decoding import DraftModels
from rdrr._generation import Completion, Generation
from rdrr._load_options import LoadOptions
from rdrr._probabilities import Loglikelihood, loglikelihood
from rdrr._response_format import read_response_format
from rdrr._session import Session, restore

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend, BackendInfo
    from rdrr_runtime.decode.interval import Interval
    from rdrr_runtime.decode.strategies import StrategyName
    from rdrr_runtime.decode.strategy import Strategy, StrategyOptions
    from rdrr_runtime.text.chat_template import ChatTemplate
    from rdrr_runtime.text.grammar import GrammarConstraint, GrammarTokenizer
    from rdrr_runtime.text.tokenizer import TextCodec

_LOGITS_BYTES = 1 << 28
"""Bytes of logits that are fetched from a backend at once."""


class Model:
    """A package on a backend; made by `rdrr.load`. Use it in a `with` block or call `close`.

    Any thread may call it. One generation runs at a time: a call from another thread waits until
    the one before it has ended, been closed or been collected; a call from the same thread ends the
    generation that the thread left unfinished. See docs/THREADS.md. In a coroutine use `agenerate`
    and `achat`, which do not block the event loop.

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
        chosen = options or LoadOptions()
        turns = Turns(chosen.busy_timeout)
        self._queues: WeakKeyDictionary[AbstractEventLoop, TaskQueue] = WeakKeyDictionary()
        self._busy_timeout = chosen.busy_timeout
        self._engine = Engine(opened.backend, manifest.eos_token_ids, vocabulary, turns)
        self._drafts = DraftModels(package, opened, turns, chosen.follow_links)

    @property
    def info(self) -> BackendInfo:
        """The backend, its adapter, the context length and the memory in use."""
        return self._opened.backend.info

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int = 128,
        logprobs: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        context_shift: int | None = None,
        interval: Interval = "auto",
        decode: StrategyOptions | StrategyName | None = None,
        **keywords: Unpack[SamplingKeywords],
    ) -> Generation:
        """Continue a prompt.

        Tokens that the prompt shares with the beginning of the previous sequence are not run again.

        Args:
            prompt: Text, or token ids.
            sampling: How the next token is chosen; greedy decoding when None.
            max_tokens: Most new tokens.
            logprobs: Record the log-probability of each token, and those of this many of the most
                probable tokens (at most 20), before any sampling option changes them.
            response_format: The form that the text must have: `{"type": "json_schema",
                "json_schema": {"schema": {...}}}`, `{"type": "json_object"}` or
                `{"type": "regex", "regex": ...}`.
            stop: One or several strings that end the text; they are not part of it.
            stop_ids: Token ids that end the text, besides those of the model.
            context_shift: When the context is full, keep this many first tokens, drop the older
                half of the others and continue. None ends the text there.
            interval: Tokens between two readbacks from the GPU, or `auto`, which chooses up to 8
                by the measured speed, so that text comes steadily; ids do not depend on it.
            decode: The decoding strategy, by its name or as its options, like `Speculative()`; one
                token after the other when None.
            keywords: Fields of `SamplingParams`, like `temperature`, in place of `sampling`.

        Returns:
            An iterator of pieces of text, which also has `token_ids`, `logprobs` and `stats`.

        Raises:
            GenerationError: The prompt is empty or does not fit the context.
            UsageError: An option is out of range, a schema is not supported, or the extra `grammar`
                is not installed.
        """
        from rdrr_runtime.decode.stats import GenerationStats
        from rdrr_runtime.sampling.logprobs import Logprobs

        ids = prompt_ids(prompt, self.encode)
        stops, ending = stop_strings(stop), token_ids(stop_ids, "`stop_ids`")
        chosen = _sampling(sampling, keywords)
        stats = GenerationStats()
        recorded = None if logprobs is None else Logprobs(logprobs)
        runs = self._engine.generate(
            ids,
            max_tokens=max_tokens,
            sampling=chosen,
            interval=interval,
            stats=stats,
            logprobs=recorded,
            constraint=self._constraint(response_format),
            stop_ids=ending,
            context_shift=context_shift,
            strategy=self._strategy(decode),
        )
        return Generation(
            runs, self._codec, prompt_ids=ids, stats=stats, stop=stops, logprobs=recorded
        )

    def session(
        self,
        prompt: str | Sequence[int] = "",
        *,
        sampling: SamplingParams | None = None,
        **keywords: Unpack[SamplingKeywords],
    ) -> Session:
        """Return a session: a sequence that several calls continue, and that can be saved.

        Args:
            prompt: The beginning of the sequence, as text or token ids.
            sampling: How tokens are chosen; greedy decoding when None.
            keywords: Fields of `SamplingParams`, in place of `sampling`.

        Raises:
            UsageError: An option is unknown or out of range.
        """
        from rdrr_runtime.sampling.randomness import fresh_seed

        chosen = _sampling(sampling, keywords)
        if chosen.seed is None:
            chosen = replace(chosen, seed=fresh_seed())
        made = Session(self._engine, self._codec, self.package, sampling=chosen)
        if not isinstance(prompt, str) or prompt:
            made.append(prompt)
        return made

    def restore(self, path: str | Path) -> Session:
        """Resume a session that `Session.save` wrote, as if it had never been interrupted.

        Raises:
            StoreError: There is no such file.
            FormatError: The file is not a session, or belongs to another package or another data
                type of the cache.
            GenerationError: The session does not fit the context.
        """
        return restore(self._engine, self._codec, self.package, local_path(path))

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int = 128,
        sequences: int = 16,
        interval: int = 8,
        stop_ids: Sequence[int] = (),
        **keywords: Unpack[SamplingKeywords],
    ) -> list[Completion]:
        """Continue several prompts together, each as if it were alone.

        On a GPU each pass has one row per sequence, so the weights are read once for all of them.
        On the CPU the prompts are continued one after the other.

        Args:
            prompts: Prompts, each as text or token ids.
            sampling: How tokens are chosen; greedy decoding when None.
            max_tokens: Most new tokens of each sequence.
            sequences: Most sequences in a pass, at most 32; the others wait until one has ended.
            interval: Tokens between two readbacks from the GPU.
            stop_ids: Token ids that end a sequence, besides those of the model.
            keywords: Fields of `SamplingParams`, in place of `sampling`.

        Raises:
            GenerationError: A prompt is empty or does not fit the context.
            UsageError: An option is wrong, or the data type of the key-value cache is q8_0.
        """
        chosen = _sampling(sampling, keywords)
        ids = [prompt_ids(one, self.encode) for one in read_prompts(prompts)]
        texts = self._engine.generate_batch(
            ids,
            max_tokens=max_tokens,
            sampling=chosen,
            interval=interval,
            stop_ids=token_ids(stop_ids, "`stop_ids`"),
            sequences=sequences,
        )
        return [
            Completion(self.decode(one.new), list(one.prompt), one.new, one.finish) for one in texts
        ]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | Path | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """Answer messages, from which the chat template makes the prompt.

        Args:
            messages: Objects with `role` (`system`, `user` or `assistant`) and `content`.
            tools: JSON schemas of the functions that the model may call.
            template: File of a chat template that replaces the package's own.
            variables: Further variables of the template, like `enable_thinking`.
            options: Arguments of `generate`.

        Raises:
            ManifestError: The package has no chat template, or it cannot be read.
            GenerationError: The template refuses the messages, or they do not fit the context.
            UsageError: An option is wrong.
        """
        chosen = self.chat_template(template, tools=tools is not None)
        text = chosen.render(messages, tools=tools, variables=variables)
        after = self._codec.encode_as_is(chosen.after_answer())[:1]
        stops = [one for one in after if self._codec.is_special(one)]
        options["stop_ids"] = [*token_ids(options.get("stop_ids", ()), "`stop_ids`"), *stops]
        return self.generate(self._codec.encode_as_is(text), **options)

    def agenerate(self, prompt: str | Sequence[int], **options: Any) -> AsyncGeneration:
        """Continue a prompt without blocking the event loop of asyncio.

            async for piece in model.agenerate("Once upon a time", max_tokens=64):
                print(piece, end="", flush=True)

        Args:
            prompt: Text, or token ids.
            options: Arguments of `generate`.

        Returns:
            An asynchronous iterator of pieces of text, to be read in the running event loop.

        Raises:
            GenerationError: The prompt is empty or does not fit the context.
            UsageError: An option is wrong, or no event loop is running.
        """
        return AsyncGeneration(self.generate(prompt, **options), self._task_queue())

    def achat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> AsyncGeneration:
        """Answer messages without blocking the event loop of asyncio.

        Args:
            messages: The conversation, as for `chat`.
            options: Arguments of `chat`.

        Returns:
            An asynchronous iterator of pieces of text, to be read in the running event loop.

        Raises:
            ManifestError: The package has no chat template, or it cannot be read.
            GenerationError: The template refuses the messages, or they do not fit the context.
            UsageError: An option is wrong, or no event loop is running.
        """
        return AsyncGeneration(self.chat(messages, **options), self._task_queue())

    def _task_queue(self) -> TaskQueue:
        """Return the queue of the tasks of the running event loop."""
        try:
            loop = get_running_loop()
        except RuntimeError:
            raise UsageError(
                "no event loop is running",
                hint="call it in a coroutine, or use `generate` or `chat`",
            ) from None
        return self._queues.setdefault(loop, TaskQueue(self._busy_timeout))

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

    def _strategy(self, decode: StrategyOptions | str | None) -> Strategy | None:
        if isinstance(decode, str):
            from rdrr_runtime.decode.strategies import options_named

            decode = options_named(decode)
        return None if decode is None else decode.strategy(self._drafts)

    def _constraint(self, response_format: Mapping[str, Any] | None) -> GrammarConstraint | None:
        grammar = read_response_format(response_format)
        return None if grammar is None else self._grammar_tokenizer.constraint(grammar)

    @cached_property
    def _grammar_tokenizer(self) -> GrammarTokenizer:
        from rdrr_runtime.text.grammar import GrammarTokenizer

        manifest = self.package.manifest
        content = self.package.tokenizer_bytes() or b""
        return GrammarTokenizer(content, manifest.architecture.vocab_size, manifest.eos_token_ids)

    def close(self) -> None:
        """Free the memory of the model. A running generation ends after its current pass.

        Raises:
            GenerationError: The pass took too long, or this is called from within it.
        """
        if self._engine.turns.close():
            self._drafts.close()
            self._opened.close()

    def __repr__(self) -> str:
        return f"Model({self.package.manifest.model_id!r}, {self.reason!r})"

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

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _sampling(given: SamplingParams | None, keywords: Mapping[str, Any]) -> SamplingParams:
    return fill(SamplingParams, given, keywords, parameter="sampling")


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
