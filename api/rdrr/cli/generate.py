"""`rdrr generate`: text from a package, as it comes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rdrr_format.errors import UsageError

from rdrr.cli._console import console, facts, note, print_json
from rdrr.cli._options import (
    Adapter,
    Backend,
    Context,
    JsonFlag,
    KernelHints,
    KvDtype,
    PackagePath,
    StrictHints,
    split_hints,
)
from rdrr.cli._units import format_size

if TYPE_CHECKING:
    from rdrr import Generation, Model

_FIGURES = (
    ("prompt tokens", "prompt_tokens", "{:d}"),
    ("new tokens", "new_tokens", "{:d}"),
    ("ended by", "finish", "{}"),
    ("time to first token", "time_to_first_token_ms", "{:.1f} ms"),
    ("prefill", "prefill_tokens_per_second", "{:.1f} tokens/s"),
    ("decode", "decode_tokens_per_second", "{:.1f} tokens/s"),
)


def generate(
    path: PackagePath,
    prompt: Annotated[
        str | None, typer.Option(help="Text to continue; - or none reads it from standard input.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Divides the logits; 0 takes the likeliest token.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the likeliest that reach this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw among those at least this share of the likeliest.")
    ] = None,
    repeat_penalty: Annotated[
        float | None, typer.Option(help="Make earlier tokens less likely; 1 changes nothing.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text before this string; repeatable.")
    ] = None,
    backend: Backend = "auto",
    adapter: Adapter = None,
    kernel_hint: KernelHints = None,
    strict_hints: StrictHints = False,
    kv_dtype: KvDtype = "f16",
    context: Context = None,
    interval: Annotated[
        int, typer.Option(min=1, help="Greedy: tokens between two readbacks from the GPU.")
    ] = 8,
    stats: Annotated[bool, typer.Option("--stats", help="Print timings to stderr.")] = False,
    json: JsonFlag = False,
) -> int:
    """Continue a prompt. The text goes to stdout as it comes, all else to stderr."""
    import rdrr

    text = _read_prompt(prompt)
    with rdrr.load(
        path,
        backend=backend,
        adapter=adapter,
        kernel_hints=split_hints(kernel_hint),
        strict_hints=strict_hints,
        kv_dtype=kv_dtype,
        context=context,
    ) as model:
        generation = model.generate(
            text,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            seed=seed,
            stop=stop or (),
            interval=interval,
        )
        _announce(model)
        if json:
            print_json(result(model, generation, generation.read()))
        else:
            _stream(generation)
        if stats:
            _show_stats(model, generation)
    return 0


def result(model: Model, generation: Generation, text: str) -> dict[str, Any]:
    """A finished generation as JSON values."""
    return {
        "text": text,
        "prompt_tokens": len(generation.prompt_ids),
        "token_ids": generation.token_ids,
        "backend": model.info.name,
        "adapter": model.info.adapter,
        "stats": generation.stats.as_dict(),
    }


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise UsageError("no prompt", hint='give --prompt "TEXT", or pipe the text in')
    return sys.stdin.read()


def _announce(model: Model) -> None:
    note(model.reason)
    for line in model.unhonoured_hints:
        note(f"warning: {line}")


def _stream(pieces: Generation) -> None:
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _show_stats(model: Model, generation: Generation) -> None:
    figures = generation.stats.as_dict()
    rows: list[tuple[str, str]] = [
        (label, form.format(figures[key])) for label, key, form in _FIGURES
    ]
    console(stderr=True).print(facts([*rows, *_memory(model)]))


def _memory(model: Model) -> Sequence[tuple[str, str]]:
    info = model.info
    return (
        ("weights", format_size(info.weights_bytes)),
        ("key-value cache", f"{format_size(info.kv_bytes)} for {info.context} tokens"),
    )
