"""The adapter for lm-evaluation-harness: packages as the model `rdrr` of its tasks.

It needs the extra `lm-eval` and is imported on demand only. Either run the harness's own command
line through this module, which registers the model first:

    python -m rdrr.lm_eval run --model rdrr --model_args path=package --tasks hellaswag

or import it before calling the harness from Python:

    import lm_eval
    import rdrr.lm_eval

    model = rdrr.lm_eval.RdrrLM("package", context=2048)
    results = lm_eval.simple_evaluate(model=model, tasks=["hellaswag"])

Tokens are split between context and continuation, and long texts into windows, by the harness's
own functions, so scores compare with those of its other models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Unpack

from rdrr_format.errors import UsageError
from rdrr_format.extras import install_hint
from rdrr_format.options import options_of, shown

import rdrr
from rdrr._load_options import LoadKeywords

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    raise ImportError(
        f"rdrr.lm_eval needs lm-evaluation-harness: {install_hint('lm-eval')}"
    ) from error

MAX_NEW_TOKENS = 256
"""New tokens of a generation whose task states no limit, as in the harness."""

MAX_BATCH = 32
"""Most sequences of a batch (`Model.generate_batch`); `batch_size` auto asks for it."""

Scored = tuple[float, bool]


@register_model("rdrr")  # type: ignore[untyped-decorator, unused-ignore]
class RdrrLM(TemplateLM):  # type: ignore[misc, unused-ignore]
    """A loaded package as a model of the harness.

    Args:
        path: Folder or URL of the package.
        batch_size: Sequences that are generated together, at most 32; `auto` for 32.
            Log-likelihoods are scored one sequence at a time.
        max_batch_size: Upper bound of `batch_size`.
        max_gen_toks: New tokens of a generation whose task states no limit.
        add_bos_token: Begin each text with the beginning-of-sequence token, or not; as the
            manifest says when None.
        device: Ignored; the harness gives it. Choose with `backend` and `adapter`.
        options: Options of `rdrr.load`.

    Raises:
        UsageError: An option is wrong.
        RdrrError: The package cannot be loaded; see `rdrr.load`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        max_gen_toks: int = MAX_NEW_TOKENS,
        add_bos_token: bool | None = None,
        device: str | None = None,
        **options: Unpack[LoadKeywords],
    ) -> None:
        super().__init__()
        del device
        self.batch_size = min(_batch_size(batch_size), max_batch_size or MAX_BATCH)
        self.max_gen_toks = max_gen_toks
        self.model = rdrr.load(path, **options)
        manifest = self.model.package.manifest
        self._bos = manifest.tokenizer.bos_token_id if manifest.tokenizer else None
        self._add_bos = add_bos_token
        self._eos = next(iter(manifest.eos_token_ids), self._bos)

    @property
    def max_length(self) -> int:
        """Tokens of a sequence, which the context of the loaded model bounds."""
        return self.model.info.context

    @property
    def eot_token_id(self) -> int:
        """The id of the end-of-text token, or of the beginning of a sequence without one.

        Raises:
            UsageError: The package names neither.
        """
        if self._eos is None:
            raise UsageError(
                "the package names no token that a text begins or ends with",
                where=self.model.package.where,
                hint="convert the checkpoint again, with its tokenizer",
            )
        return self._eos

    @property
    def prefix_token_id(self) -> int:
        """The id before a text without context: the beginning of a sequence, else its end."""
        return self.eot_token_id if self._bos is None else self._bos

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches tokenized requests."""
        return str(self.model.package.manifest.model_id)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return token ids of a text.

        Args:
            string: The text.
            add_special_tokens: Whether to begin with the beginning-of-sequence token; what
                `add_bos_token` says when None.
        """
        special = self._add_bos if add_special_tokens is None else add_special_tokens
        plain: list[int] = self.model.encode_as_is(string)
        if self._bos is not None and plain[:1] == [self._bos]:  # the text begins with the token
            return plain
        if special is None:
            return self.model.encode(string)
        return [self._bos, *plain] if special and self._bos is not None else plain

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[Scored]:
        """Score continuations of contexts; contexts are cut on the left where they are too long.

        Requests with the same context follow each other, so that it is run once for all of them.
        """
        answers: list[Scored | None] = [None] * len(requests)
        order = sorted(range(len(requests)), key=lambda index: requests[index][1])
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="log-likelihoods")
        for _context, group in groupby(order, key=lambda index: self._kept(*requests[index][1:])):
            indices = list(group)
            scores = self.model.loglikelihoods(
                list(_context), [requests[index][2] for index in indices]
            )
            for index, score in zip(indices, scores, strict=True):
                answers[index] = answer = (score.total, score.is_greedy)
                if requests[index][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], answer)
            bar.update(len(indices))
        bar.close()
        return [answer for answer in answers if answer is not None]

    def _kept(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[int, ...]:
        """Return the end of a context that fits beside its continuation.

        Raises:
            UsageError: The continuation alone is too long.
        """
        room = self.max_length + 1 - len(continuation)  # the last token is not run
        if room < 1:
            raise UsageError(
                "a continuation is longer than the context",
                expected=f"at most {self.max_length} tokens",
                found=len(continuation),
                hint="load the model with a larger `context`",
            )
        return tuple(context[-room:])

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of each whole text, in windows as long as the context."""
        totals = []
        for request in tqdm(requests, disable=disable_tqdm, desc="rolling log-likelihoods"):
            (text,) = request.args
            windows = get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(None, *make_disjoint_window(window)) for window in windows]
            total = sum(score for score, _ in self._loglikelihood_tokens(parts, disable_tqdm=True))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
            totals.append(total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a text for each request, which ends before the first of its stop strings."""
        texts: list[str] = [""] * len(requests)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="generations")
        order = sorted(range(len(requests)), key=lambda index: shown(requests[index].args[1]))
        for _, group in groupby(order, key=lambda index: shown(requests[index].args[1])):
            for indices in _batches(list(group), self.batch_size):
                prompts = [requests[index].args[0] for index in indices]
                given = requests[indices[0]].args[1]
                for index, text in zip(indices, self._generate(prompts, given), strict=True):
                    texts[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
                bar.update(len(indices))
        bar.close()
        return texts

    def _generate(self, prompts: Sequence[str], given: Mapping[str, Any]) -> list[str]:
        """Continue prompts that have the same arguments of generation."""
        options = normalize_gen_kwargs(dict(given), self.max_gen_toks)
        stop = [string for string in options["until"] if string]
        max_tokens = int(options["max_gen_toks"])
        room = self.max_length - max_tokens
        if room < 1:
            raise UsageError(
                "the task generates more tokens than the context holds",
                expected=f"less than {self.max_length}",
                found=max_tokens,
                hint="load the model with a larger `context`, or lower max_gen_toks",
            )
        ids = [self.tok_encode(prompt)[-room:] for prompt in prompts]
        sampling = rdrr.SamplingParams(
            **{
                name: options[name]
                for name in options_of(rdrr.SamplingParams)
                if options.get(name) is not None
            }
        )
        if len(ids) == 1:  # it can stop at a stop string; a batch runs on
            reply = self.model.generate(ids[0], sampling=sampling, max_tokens=max_tokens, stop=stop)
            return [reply.read()]
        done = self.model.generate_batch(
            ids, sampling=sampling, max_tokens=max_tokens, sequences=len(ids)
        )
        return [_before(completion.text, stop) for completion in done]

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt that the package's chat template makes of messages."""
        template = self.model.chat_template()
        return template.render(chat_history, add_generation_prompt=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the source of the package's chat template, by which the harness caches requests.

        Args:
            chat_template: Whether to use it; a package has one template, so a name is refused.

        Raises:
            UsageError: A name is given.
        """
        if isinstance(chat_template, str) and chat_template != "default":
            raise UsageError("a package has one chat template", found=chat_template)
        return self.model.chat_template().source if chat_template else None


def _batch_size(given: int | str) -> int:
    """Return a batch size that the harness gives as a number or a word.

    Raises:
        UsageError: It is neither a positive number nor `auto`.
    """
    text = str(given)
    if text.partition(":")[0] == "auto":
        return MAX_BATCH
    if not text.isdecimal() or not int(text) > 0:
        raise UsageError("`batch_size` is wrong", expected="1 or more, or auto", found=given)
    return min(int(text), MAX_BATCH)


def _batches(indices: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(indices), size):
        yield indices[first : first + size]


def _before(text: str, stop: Iterable[str]) -> str:
    """Return the text before the first of the stop strings."""
    return text[: min((text.find(string) for string in stop if string in text), default=len(text))]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
