"""`rdrr generate`: text from a package, as it comes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rdrr_format.errors import UsageError
from rdrr_runtime.decode.interval import AUTO
from rdrr_runtime.sampling.params import SamplingParams

from rdrr._load_options import LoadOptions
from rdrr._units import format_size
from rdrr.cli._console import announce, console, facts, note, print_json
from rdrr.cli._decoding import DecodeFlags
from rdrr.cli._flags import with_flags
from rdrr.cli._options import ContextShift, IntervalFlag, JsonFlag, PackagePath
from rdrr.cli._response_format import read_format

if TYPE_CHECKING:
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr import Generation, Model

_FIGURES = (
    ("prompt tokens", "prompt_tokens", "{:d}"),
    ("new tokens", "new_tokens", "{:d}"),
    ("ended by", "finish", "{}"),
    ("time to first token", "time_to_first_token_ms", "{:.1f} ms"),
    ("prefill", "prefill_tokens_per_second", "{:.1f} tokens/s"),
    ("decode", "decode_tokens_per_second", "{:.1f} tokens/s"),
    ("forward passes", "forwards", "{:d}"),
    ("tokens a pass", "tokens_per_forward", "{:.2f}"),
    ("wasted rows", "wasted_rows", "{:d}"),
    ("draft tokens", "drafted", "{:d}"),
    ("accepted", "accepted", "{:d}"),
)

_OF_DRAFTS = ("drafted", "accepted")
_OF_PASSES = ("forwards", "tokens_per_forward", "wasted_rows")


@with_flags
def generate(
    path: PackagePath,
    *,
    prompt: Annotated[
        str | None, typer.Option(help="Text to continue; - or none reads it from standard input.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens.")] = 128,
    sampling: SamplingParams,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --json: each token's log-probability, and the N likeliest, at most 20.",
        ),
    ] = None,
    json_schema: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Hold the text to this JSON schema; - reads it."),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="Hold the text to this regular expression.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text before this string; repeatable.")
    ] = None,
    load: LoadOptions,
    context_shift: ContextShift = None,
    interval: IntervalFlag = AUTO,
    decode: DecodeFlags,
    stats: Annotated[bool, typer.Option("--stats", help="Print timings to stderr.")] = False,
    json: JsonFlag = False,
) -> int:
    """Continue a prompt. The text goes to stdout as it comes, all else to stderr."""
    import rdrr

    response_format = read_format(json_schema, regex)
    if logprobs is not None and not json:
        raise UsageError("log-probabilities come in the JSON object", hint="add --json")
    strategy = decode.read()
    text = _read_prompt(prompt)
    with rdrr.load(path, options=load) as model:
        generation = model.generate(
            text,
            sampling=sampling,
            max_tokens=max_tokens,
            logprobs=logprobs,
            response_format=response_format,
            stop=stop or (),
            context_shift=context_shift,
            interval=interval,
            decode=strategy,
        )
        announce(model)
        if json:
            print_json(result(model, generation, generation.read()))
        else:
            _stream(generation)
            if generation.stats.finish == "context":
                note("the context is full; --context enlarges it, --context-shift N goes on")
        if stats:
            _show_stats(model, generation)
    return 0


def result(model: Model, generation: Generation, text: str) -> dict[str, Any]:
    """A finished generation as JSON values."""
    recorded = generation.logprobs
    return {
        "text": text,
        "prompt_tokens": len(generation.prompt_ids),
        "token_ids": generation.token_ids,
        **({} if recorded is None else {"logprobs": [_logprobs(model, one) for one in recorded]}),
        "backend": model.info.name,
        "adapter": model.info.adapter,
        "stats": generation.stats.as_dict(),
    }


def _logprobs(model: Model, chosen: TokenLogprobs) -> dict[str, Any]:
    def one(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token_id": token_id, "text": model.decode([token_id]), "logprob": logprob}

    return {**one(chosen.token_id, chosen.logprob), "top": [one(*best) for best in chosen.top]}


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise UsageError("no prompt", hint='give --prompt "TEXT", or pipe the text in')
    return sys.stdin.read()


def _stream(pieces: Generation) -> None:
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _show_stats(model: Model, generation: Generation) -> None:
    figures = generation.stats.as_dict()
    hidden: tuple[str, ...] = () if figures["drafted"] else _OF_DRAFTS
    if figures["rows"] == figures["forwards"]:  # one token a pass, as always without --decode
        hidden += _OF_PASSES
    rows: list[tuple[str, str]] = [
        (label, form.format(figures[key])) for label, key, form in _FIGURES if key not in hidden
    ]
    console(stderr=True).print(facts([*rows, *_memory(model)]))


def _memory(model: Model) -> Sequence[tuple[str, str]]:
    info = model.info
    return (
        ("weights", format_size(info.weights_bytes)),
        ("key-value cache", f"{format_size(info.kv_bytes)} for {info.context} tokens"),
    )
