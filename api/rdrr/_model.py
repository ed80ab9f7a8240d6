"""A loaded model: text in, text out. It joins a package, a backend and a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import GenerationError, ManifestError, UsageError

from rdrr._backends import Choice
from rdrr._chat import open_template
from rdrr._decoding import Drafts, Speculative, Wedlm
from rdrr._generation import Completion, Generation
from rdrr._response_format import read_response_format
from rdrr._session import Session, restore

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import BackendInfo
    from rdrr_runtime.decode.base import Strategy
    from rdrr_runtime.sampling.sampler import SamplingOptions
    from rdrr_runtime.text.chat_template import ChatTemplate
    from rdrr_runtime.text.grammar import GrammarConstraint, GrammarTokenizer
    from rdrr_runtime.text.tokenizer import TextCodec


class Model:
    """A package on a backend; made by `rdrr.load`. Use it in a `with` block or call `close`.

    Attributes:
        package: What was loaded.
        reason: Which backend runs it, why, and how to get the other.
        unhonoured_hints: A line for each kernel hint that the backend does not follow.
    """

    def __init__(self, package: Package, choice: Choice) -> None:
        from rdrr_runtime.engine import Engine

        self.package = package
        self.reason = choice.reason
        self.unhonoured_hints = choice.unhonoured
        self._choice = choice
        self._drafts = Drafts(package, choice)
        self._codec = _codec(package)
        self._templates: dict[tuple[str | None, bool], ChatTemplate] = {}
        manifest = package.manifest
        self._engine = Engine(
            choice.backend, manifest.eos_token_ids, manifest.architecture.vocab_size
        )

    @property
    def info(self) -> BackendInfo:
        """Backend, adapter, context and memory."""
        return self._choice.backend.info

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repeat_penalty: float | None = None,
        seed: int | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        context_shift: int | None = None,
        interval: int = 8,
        decode: Wedlm | Speculative | None = None,
    ) -> Generation:
        """Continue a prompt. What it shares with the text before is not run again.

        Args:
            prompt: Text, or token ids.
            max_tokens: Most new tokens.
            temperature: Divides the logits; 0 takes the likeliest token.
            top_k: Draw among the k likeliest tokens.
            top_p: Draw among the likeliest tokens that together reach this probability.
            min_p: Draw among tokens at least this share as likely as the likeliest.
            repeat_penalty: Makes tokens that were there before less likely; 1 for no change.
            seed: Of the draws; the same seed gives the same text.
            frequency_penalty: Taken off a token's logit for each time that it was there before.
            presence_penalty: Taken off once if it was there at all.
            logit_bias: Added to the logits of these ids.
            logprobs: Tell, besides each token's own, the log-probabilities of so many of the
                likeliest, at most 20, as the model gives them.
            response_format: What the text must be: `{"type": "json_schema", "json_schema":
                {"schema": {...}}}`, `{"type": "json_object"}`, `{"type": "regex", "regex": ...}`.
            stop: Strings that end the text; they are not part of it.
            stop_ids: Ids that end the text besides those of the model.
            context_shift: When the context is full, keep so many first tokens, drop the older
                half of the others and go on; the text ends there when None.
            interval: Tokens between two readbacks from the GPU.
            decode: Another way of decoding than one token after the other.

        Returns:
            An iterator of pieces of text, which also has `token_ids`, `logprobs` and `stats`.

        Raises:
            GenerationError: The prompt is empty or does not fit the context.
            UsageError: An option is out of range, a schema cannot be followed, or the extra
                `grammar` is not installed.
        """
        from rdrr_runtime.engine import GenerationStats
        from rdrr_runtime.sampling.logprobs import Logprobs
        from rdrr_runtime.sampling.sampler import SamplingOptions

        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        sampling = SamplingOptions(
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            seed,
            frequency_penalty,
            presence_penalty,
            logit_bias or {},
        )
        if decode is not None and (logprobs is not None or response_format is not None):
            raise UsageError("log-probabilities and formats need one token after the other")
        stats = GenerationStats()
        told = None if logprobs is None else Logprobs(logprobs)
        runs = self._engine.generate(
            ids,
            max_tokens=max_tokens,
            sampling=sampling,
            interval=interval,
            stats=stats,
            logprobs=told,
            constraint=self._constraint(response_format),
            stop_ids=stop_ids,
            context_shift=context_shift,
            strategy=self._strategy(decode, sampling),
        )
        return Generation(runs, self._codec, prompt_ids=ids, stats=stats, stop=stop, logprobs=told)

    def session(self, prompt: str | Sequence[int] = "", **sampling: Any) -> Session:
        """A text that goes on over several calls and can be saved.

        Args:
            prompt: Its beginning, text or token ids.
            sampling: `temperature`, `top_k`, `seed` and the like, as of `generate`.

        Raises:
            UsageError: An option is unknown or out of range.
        """
        from rdrr_runtime.sampling.randomness import fresh_seed

        options = _sampling_options(sampling)
        if options.seed is None:
            options = replace(options, seed=fresh_seed())
        made = Session(self._engine, self._codec, self.package, sampling=options)
        if prompt:
            made.append(prompt)
        return made

    def restore(self, path: str | Path) -> Session:
        """Take up a session that `Session.save` wrote; it goes on as if it had not been left.

        Raises:
            StoreError: There is no such file.
            FormatError: Not a session, or one of another package or type of cache.
            GenerationError: It does not fit the context.
        """
        return restore(self._engine, self._codec, self.package, Path(path))

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        max_tokens: int = 128,
        sequences: int = 16,
        interval: int = 8,
        stop_ids: Sequence[int] = (),
        **sampling: Any,
    ) -> list[Completion]:
        """Continue several prompts together; each gets the text that it gets alone.

        On a GPU a pass has a row of each text, so that weights are read once for all. On the CPU
        one follows the other.

        Args:
            prompts: Texts, or token ids.
            max_tokens: Most new tokens of each.
            sequences: Most texts in a pass, at most 32; others wait until one has ended.
            interval: Tokens between two readbacks from the GPU.
            stop_ids: Ids that end a text besides those of the model.
            sampling: `temperature`, `top_k`, `seed` and the like, as of `generate`.

        Raises:
            GenerationError: A prompt is empty or does not fit the context.
            UsageError: An option is wrong, or the key-value cache is in q8_0.
        """
        options = _sampling_options(sampling)
        ids = [self.encode(one) if isinstance(one, str) else list(one) for one in prompts]
        texts = self._engine.generate_batch(
            ids,
            max_tokens=max_tokens,
            sampling=options,
            interval=interval,
            stop_ids=stop_ids,
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
        """Answer messages, put into a prompt by the chat template.

        Args:
            messages: Each with `role` (`system`, `user`, `assistant`) and `content`.
            tools: JSON schemas of functions that the template tells the model of.
            template: File of a chat template instead of the package's.
            variables: Whatever else the template reads, as `enable_thinking`.
            options: As of `generate`.

        Raises:
            ManifestError: The package has no chat template, or none that can be read.
            GenerationError: The template refuses the messages, or they do not fit the context.
            UsageError: An option is wrong.
        """
        chosen = self.chat_template(template, tools=tools is not None)
        text = chosen.render(messages, tools=tools, variables=variables)
        after = self._codec.encode_as_is(chosen.after_answer())[:1]
        stops = [one for one in after if self._codec.is_special(one)]
        options["stop_ids"] = [*options.get("stop_ids", ()), *stops]
        return self.generate(self._codec.encode_as_is(text), **options)

    def chat_template(self, file: str | Path | None = None, *, tools: bool = False) -> ChatTemplate:
        """The template of `file`, else of the package; see `chat`."""
        key = (None if file is None else str(file), tools)
        if key not in self._templates:
            self._templates[key] = open_template(self.package, file=file, tools=tools)
        return self._templates[key]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self._codec.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        return self._codec.decode(ids)

    def logits(self, ids: Sequence[int], *, stepwise: bool = False) -> npt.NDArray[np.float32]:
        """Logits after each of `ids`, float32 [len(ids), vocab], teacher-forced.

        Args:
            ids: Token ids, from the beginning of a text.
            stepwise: Feed them one after another, by the kernels that generate text, instead of
                many in a pass, by the kernels that read a prompt.

        Raises:
            GenerationError: There are none, or more than the context holds.
        """
        backend = self._choice.backend
        self._engine.forget()
        if not 0 < len(ids) <= backend.info.context:
            raise GenerationError(
                "the ids do not fit",
                expected=f"1 to {backend.info.context}",
                found=len(ids),
                hint="load the model with a larger context",
            )
        if not stepwise:
            return backend.logits(ids, 0, all_rows=True)
        import numpy as np

        return np.concatenate([backend.logits([one], base) for base, one in enumerate(ids)])

    def _strategy(
        self, decode: Wedlm | Speculative | None, sampling: SamplingOptions
    ) -> Strategy | None:
        if isinstance(decode, Speculative):
            return decode.strategy(self._drafts, sampling)
        return None if decode is None else decode.strategy(self.package, sampling)

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
        """Free what the model holds."""
        self._drafts.close()
        self._choice.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _sampling_options(given: Mapping[str, Any]) -> SamplingOptions:
    """Options of drawing by name.

    Raises:
        UsageError: One is unknown or out of range.
    """
    from rdrr_runtime.sampling.sampler import SamplingOptions

    unknown = set(given) - {one.name for one in fields(SamplingOptions)}
    if unknown:
        raise UsageError("unknown option of drawing", found=", ".join(sorted(unknown)))
    return SamplingOptions(**given)


def _codec(package: Package) -> TextCodec:
    """The package's tokenizer.

    Raises:
        ManifestError: It has none.
    """
    from rdrr_runtime.text.tokenizer import TextCodec

    content, stated = package.tokenizer_bytes(), package.manifest.tokenizer
    if content is None or stated is None:
        raise ManifestError(
            "the package has no tokenizer", where=package.where, hint="convert it again with one"
        )
    return TextCodec(content, bos_token_id=stated.bos_token_id, add_bos=stated.add_bos_token)
