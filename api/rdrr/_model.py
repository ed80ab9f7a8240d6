"""A loaded model that generates text: single sequences, batches, sessions and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rdrr_format.locations import local_path
from rdrr_format.misuse import explained
from rdrr_format.options import fill
from rdrr_runtime.sampling.params import SamplingKeywords, SamplingParams

from rdrr._arguments import prompt_ids, stop_strings, token_ids
from rdrr._arguments import prompts as read_prompts
from rdrr._backends import OpenedBackend
from rdrr._chat_prompt import ChatPrompt, RenderedChat, take_prompt_images
from rdrr._decoding import DraftModels
from rdrr._generate_keywords import (
    BATCH,
    GENERATE,
    OTHER_NAMES,
    SESSION,
    ChatKeywords,
    GenerateKeywords,
)
from rdrr._generation import Completion, Generation
from rdrr._load_options import LoadOptions
from rdrr._response_format import read_response_format
from rdrr._scoring_model import ScoringModel
from rdrr._session import Session, restore
from rdrr._sight import Sight

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.decode.interval import Interval
    from rdrr_runtime.decode.strategies import StrategyName
    from rdrr_runtime.decode.strategy import Strategy, StrategyOptions
    from rdrr_runtime.text.grammar import GrammarConstraint, GrammarTokenizer

    from rdrr._async_generation import AsyncGeneration, TaskQueues


@explained
class Model(ScoringModel):
    """A package on a backend; made by `rdrr.load`. Use it in a `with` block or call `close`.

    Any thread may call it. One generation runs at a time: a call from another thread waits until
    the one before it has ended, been closed or been collected; a call from the same thread ends the
    generation that the thread left unfinished. See docs/THREADS.md. In a coroutine use `agenerate`
    and `achat`, which do not block the event loop.
    """

    def __init__(
        self, package: Package, opened: OpenedBackend, options: LoadOptions | None = None
    ) -> None:
        super().__init__(package, opened, options)
        chosen = options or LoadOptions()
        self._busy_timeout = chosen.busy_timeout
        self._sight = Sight(package, opened)
        self._drafts = DraftModels(package, opened, self._engine.lock, chosen.follow_links)

    def _release(self) -> None:
        self._drafts.close()
        self._sight.close()
        super()._release()

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
                "json_schema": {"schema": {...}}}`, `{"type": "json_object"}`,
                `{"type": "regex", "regex": ...}` or `{"type": "grammar", "grammar": ...}`, in
                llguidance's dialect of Lark or llama.cpp's GBNF.
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

        self._check_head()
        ids = prompt_ids(prompt, self.encode)
        stops, ending = stop_strings(stop), token_ids(stop_ids, "`stop_ids`")
        chosen = _sampling(sampling, keywords, GENERATE)
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

        self._check_head()
        chosen = _sampling(sampling, keywords, SESSION)
        if chosen.seed is None:
            chosen = replace(chosen, seed=fresh_seed())
        session = Session(self._engine, self._codec, self.package, sampling=chosen)
        if not isinstance(prompt, str) or prompt:
            session.append(prompt)
        return session

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
        On the CPU the sequences of a pass run one after the other.

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
        self._check_head()
        chosen = _sampling(sampling, keywords, BATCH)
        ids = [prompt_ids(prompt, self.encode) for prompt in read_prompts(prompts)]
        texts = self._engine.generate_batch(
            ids,
            max_tokens=max_tokens,
            sampling=chosen,
            interval=interval,
            stop_ids=token_ids(stop_ids, "`stop_ids`"),
            sequences=sequences,
        )
        return [
            Completion(
                self._codec.continuation(text.prompt, text.ids),
                list(text.prompt),
                text.ids,
                text.finish,
            )
            for text in texts
        ]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | Path | None = None,
        variables: Mapping[str, Any] | None = None,
        control_tokens: bool = False,
        **options: Unpack[GenerateKeywords],
    ) -> Generation:
        """Answer messages, from which the chat template makes the prompt.

        Text of a message never becomes a control token, such as the end of a turn. An answer that
        has its `token_ids` is continued as it was generated, with its special tokens.

        Args:
            messages: Objects with `role` (`system`, `user` or `assistant`) and `content`; a message
                of the assistant may have the `token_ids` of its generation. A `content` may be a
                list of parts, of which some are images: `{"type": "image_url", "image_url":
                {"url": ...}}` with a data URL or the path of a file.
            tools: JSON schemas of the functions that the model may call.
            template: File of a chat template that replaces the package's own.
            variables: Further variables of the template, like `enable_thinking`.
            control_tokens: Let the text of messages become control tokens, as transformers does by
                default. Use it only where nobody else writes the messages.
            options: Arguments of `generate`.

        Raises:
            ManifestError: The package has no chat template, or it cannot be read.
            GenerationError: The template refuses the messages, or they do not fit the context.
            UsageError: An option is wrong.
        """
        rendered = self._render_chat(
            messages,
            tools=tools,
            template=template,
            variables=variables,
            control_tokens=control_tokens,
        )
        stated = token_ids(options.get("stop_ids", ()), "`stop_ids`")
        options["stop_ids"] = [*stated, *rendered.ends]
        ids = self._with_images(rendered)
        answer = self.generate(ids, **options)
        answer.prompt_ids = ids  # the same ids, which hold the images until the answer has begun
        return answer

    def _with_images(self, rendered: RenderedChat) -> list[int]:
        """Return the ids of a prompt, with those of its images in their places.

        Raises:
            GenerationError: The package has no vision tower.
        """
        processor = self.package.manifest.processor
        if not rendered.images or processor is None:
            return rendered.ids
        (placeholder,) = self._codec.encode_as_is(processor.token)
        with self._engine.lock.exclusive():
            return self._sight.ids(rendered.ids, placeholder, rendered.images)

    def _render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | Path | None = None,
        variables: Mapping[str, Any] | None = None,
        control_tokens: bool = False,
        **answer: Any,
    ) -> RenderedChat:
        """Return the prompt of a chat; see `chat`.

        Args:
            messages: The messages.
            tools: JSON schemas of the functions that the model may call.
            template: File of a chat template that replaces the package's own.
            variables: Further variables of the template.
            control_tokens: Let the text of messages become control tokens.
            answer: What the answer begins with, as `ChatPrompt.rendered` takes it.
        """
        chosen = self.chat_template(template, tools=tools is not None)
        texts = chosen.control_tokens(self._codec.added_tokens())
        known = None if control_tokens else self._codec.control_tokens(texts)
        after = self._codec.encode_as_is(chosen.after_answer())[:1]
        stops = [token_id for token_id in after if self._codec.is_special(token_id)]
        ends = (*self.package.manifest.eos_token_ids, *stops)
        messages, images = take_prompt_images(self.package, messages, self.info.context)
        prompt = ChatPrompt(chosen, self._codec, ends, tools, variables, known, images)
        ids, text = prompt.rendered(messages, **answer)
        return RenderedChat(ids, stops, text, () if images is None else images.patches)

    def agenerate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerateKeywords]
    ) -> AsyncGeneration:
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
        return self._in_task(self.generate(prompt, **options))

    def achat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatKeywords]
    ) -> AsyncGeneration:
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
        return self._in_task(self.chat(messages, **options))

    @cached_property
    def _queues(self) -> TaskQueues:
        """The queues of tasks; they import asyncio, which most programs do without."""
        from rdrr._async_generation import TaskQueues

        return TaskQueues(self._busy_timeout)

    def _in_task(self, generation: Generation) -> AsyncGeneration:
        from rdrr._async_generation import AsyncGeneration

        return AsyncGeneration(generation, self._queues.running())

    def _strategy(self, decode: StrategyOptions | str | None) -> Strategy | None:
        if isinstance(decode, str):
            from rdrr_runtime.decode.strategies import options_named

            decode = options_named(decode)
        return None if decode is None else decode.strategy(self._drafts)

    def _constraint(self, response_format: Mapping[str, Any] | None) -> GrammarConstraint | None:
        grammar = read_response_format(response_format)
        if grammar is None:
            return None
        self._codec.require()
        return self._grammar_tokenizer.constraint(grammar)

    @cached_property
    def _grammar_tokenizer(self) -> GrammarTokenizer:
        from rdrr_runtime.text.grammar import GrammarTokenizer

        manifest = self.package.manifest
        content = self.package.tokenizer_bytes() or b""
        return GrammarTokenizer(content, manifest.architecture.vocab_size, manifest.eos_token_ids)


def _sampling(
    given: SamplingParams | None, keywords: Mapping[str, Any], others: Sequence[str]
) -> SamplingParams:
    beside = {name: OTHER_NAMES.get(name, ()) for name in others}
    return fill(SamplingParams, given, keywords, parameter="sampling", beside=beside)
