"""`rdrr generate`: continue a prompt and print the text while it is generated."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rdrr_format.errors import UsageError
from rdrr_runtime.decode.interval import AUTO
from rdrr_runtime.sampling.params import SamplingParams

from rdrr._load_options import LoadOptions
from rdrr._sight import content_with_images
from rdrr._units import format_size
from rdrr.cli._console import announce, console, facts, note, print_json
from rdrr.cli._decoding import DecodeFlags
from rdrr.cli._flags import with_flags
from rdrr.cli._options import ContextShift, IntervalFlag, JsonFlag, PackagePath
from rdrr.cli._progress import status, with_status
from rdrr.cli._response_format import read_format

if TYPE_CHECKING:
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr import Generation, Model
    from rdrr._generate_keywords import GenerateKeywords

_FIGURES = (
    ("prompt tokens", "prompt_tokens", "{:d}"),
    ("new tokens", "new_tokens", "{:d}"),
    ("finish reason", "finish", "{}"),
    ("time to first token", "time_to_first_token_ms", "{:.1f} ms"),
    ("prefill", "prefill_tokens_per_second", "{:.1f} tokens/s"),
    ("decode", "decode_tokens_per_second", "{:.1f} tokens/s"),
    ("forward passes", "forwards", "{:d}"),
    ("tokens per pass", "tokens_per_forward", "{:.2f}"),
    ("wasted rows", "wasted_rows", "{:d}"),
    ("draft tokens", "drafted", "{:d}"),
    ("accepted tokens", "accepted", "{:d}"),
)

_SPEEDS = ("prefill_tokens_per_second", "decode_tokens_per_second")
_OF_DRAFTS = ("drafted", "accepted")
_OF_PASSES = ("forwards", "tokens_per_forward", "wasted_rows")


@with_flags
def generate(
    path: PackagePath,
    *,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            help="Text to continue. It is read from standard input if this is - or omitted.",
        ),
    ] = None,
    prompt_ids: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="Token ids to continue, such as 1,306,4658, in place of a text. If the package "
            "has no tokenizer, ids are printed too.",
        ),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="An image that the prompt is about, which then becomes a message of the chat "
            "template (repeatable). Images come where the prompt says <image>, or before it.",
        ),
    ] = None,
    video: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A video that the prompt is about, as an animated GIF, WebP or PNG (repeatable). "
            "Videos come where the prompt says <video>, or before it.",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, help="Maximum number of new tokens.")
    ] = 128,
    sampling: SamplingParams,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --json: record the log-probability of each token, and those of the N most "
            "probable tokens (at most 20).",
        ),
    ] = None,
    json_schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Generate JSON that follows the JSON schema in this file (- for standard input).",
        ),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Generate text that matches this regular expression."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Stop before this string; it is not printed (repeatable)."),
    ] = None,
    load: LoadOptions,
    context_shift: ContextShift = None,
    interval: IntervalFlag = AUTO,
    decode: DecodeFlags,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print timings and counts on stderr.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Continue a prompt. The text goes to stdout while it is generated, all else to stderr."""
    import rdrr

    response_format = read_format(json_schema, regex)
    if logprobs is not None and not json:
        raise UsageError("--logprobs needs --json: the figures are part of the JSON object")
    strategy = decode.read()
    for flag, files in (("--image", image), ("--video", video)):
        if files and prompt_ids is not None:
            raise UsageError(f"{flag} and --prompt-ids exclude each other", hint="use --prompt")
    given = _read_prompt(prompt) if prompt_ids is None else _read_ids(prompt_ids, prompt)
    content = None
    if (image or video) and isinstance(given, str):
        content = content_with_images(given, image or (), video or ())
    with status("loading the model", hidden=json):
        opened = rdrr.load(path, options=load)
    with opened as model:
        options: GenerateKeywords = {
            "sampling": sampling,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "response_format": response_format,
            "stop": stop or (),
            "context_shift": context_shift,
            "interval": interval,
            "decode": strategy,
        }
        if content is None:
            generation = model.generate(given, **options)
        else:
            generation = model.chat([{"role": "user", "content": content}], **options)
        announce(model)
        if json:
            print_json(result(model, generation, generation.read()))
        else:
            _stream(generation if model.has_tokenizer else _ids_as_text(generation))
            if generation.stats.finish == "context":
                note(
                    "the context is full: raise --context, or use --context-shift N to continue "
                    "without the oldest tokens"
                )
        if stats:
            _show_stats(model, generation)
    return 0


def result(model: Model, generation: Generation, text: str) -> dict[str, Any]:
    """Return a finished generation as JSON values."""
    probs = generation.logprobs
    return {
        "text": text,
        "prompt_tokens": len(generation.prompt_ids),
        "token_ids": generation.token_ids,
        **({} if probs is None else {"logprobs": [_logprobs(model, token) for token in probs]}),
        "backend": model.info.name,
        "adapter": model.info.adapter,
        "stats": generation.stats.as_dict(),
    }


def _logprobs(model: Model, chosen: TokenLogprobs) -> dict[str, Any]:
    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = model.decode([token_id]) if model.has_tokenizer else ""
        return {"token_id": token_id, "text": text, "logprob": logprob}

    return {**entry(chosen.token_id, chosen.logprob), "top": [entry(*best) for best in chosen.top]}


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise UsageError("there is no prompt", hint='give --prompt "TEXT", or pipe the text in')
    return sys.stdin.read()


def _read_ids(ids: str, prompt: str | None) -> list[int]:
    if prompt is not None:
        raise UsageError("--prompt and --prompt-ids exclude each other", hint="give one of them")
    try:
        return [int(token_id) for token_id in ids.replace(",", " ").split()]
    except ValueError:
        raise UsageError(
            "--prompt-ids cannot be read", expected="token ids like 1,306,4658", found=ids
        ) from None


def _ids_as_text(generation: Generation) -> Iterator[str]:
    """Yield the new token ids of a package without a tokenizer, once there are all of them."""
    generation.read()
    yield " ".join(map(str, generation.token_ids))


def _stream(pieces: Iterator[str]) -> None:
    for piece in with_status(pieces):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _show_stats(model: Model, generation: Generation) -> None:
    figures = generation.stats.as_dict()
    console(stderr=True).print(facts([*stats_rows(figures), *_memory(model)]))


def stats_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of `--stats`: labels and values, without figures that say nothing.

    Args:
        figures: The figures of a generation, from `GenerationStats.as_dict`.
    """
    hidden: tuple[str, ...] = () if figures["drafted"] else _OF_DRAFTS
    if figures["rows"] == figures["forwards"]:  # one token per pass, as always without --decode
        hidden += _OF_PASSES
    # A speed is 0 where there was nothing to measure, as for a text of one token.
    hidden += tuple(key for key in _SPEEDS if not figures[key])
    return [
        (label, form.format(figures[key])) for label, key, form in _FIGURES if key not in hidden
    ]


def _memory(model: Model) -> Sequence[tuple[str, str]]:
    info = model.info
    return (
        ("weights", format_size(info.weights_bytes)),
        ("key-value cache", f"{format_size(info.kv_bytes)} for {info.context} tokens"),
    )
