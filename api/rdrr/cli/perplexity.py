"""`rdrr perplexity`: how well a package predicts a text, alone or compared with another one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rdrr_format.errors import UsageError

from rdrr._load_options import LoadOptions
from rdrr._texts import read_text
from rdrr.cli._console import announce, console, facts, print_json
from rdrr.cli._flags import Only, with_flags
from rdrr.cli._invocation import READS_LOCATION
from rdrr.cli._options import JsonFlag, PackagePath, TextTokens, WindowTokens
from rdrr.cli._progress import status, window_progress

if TYPE_CHECKING:
    from rdrr import Model
    from rdrr.evaluate import Comparison, Perplexity


@with_flags
def perplexity(
    path: PackagePath,
    *,
    text: Annotated[
        Path, typer.Option(metavar="FILE", help="UTF-8 text to predict.", show_default=False)
    ],
    against: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A package with the same vocabulary to compare with."),
        READS_LOCATION,
    ] = None,
    window: WindowTokens = 512,
    tokens: TextTokens = None,
    decode_path: Annotated[
        bool,
        typer.Option(
            "--decode-path",
            help="Run one token per pass, with the kernels that generate text; this is slow.",
        ),
    ] = False,
    load: Annotated[
        LoadOptions,
        Only(
            "backend",
            "adapter",
            "webgpu",
            "kernel_hints",
            "strict_hints",
            "kv_dtype",
            "follow_links",
            "verify",
            "max_vram",
        ),
    ],
    json: JsonFlag = False,
) -> int:
    """Measure how well a package predicts a text."""
    import rdrr
    from rdrr import evaluate

    content = read_text(text)
    open_model = partial(_open, load=load, window=window, hidden=json)
    with ExitStack() as stack:
        model: rdrr.Model = stack.enter_context(open_model(path))
        base = stack.enter_context(open_model(against)) if against is not None else None
        report = stack.enter_context(window_progress(hidden=json))
        evaluation = (
            evaluate.perplexity(
                model, content, window=window, limit=tokens, stepwise=decode_path, progress=report
            )
            if base is None
            else evaluate.compare(
                model,
                base,
                content,
                window=window,
                limit=tokens,
                stepwise=decode_path,
                progress=report,
            )
        )
        details = {"backend": model.info.name, "adapter": model.info.adapter}
    if json:
        print_json(evaluation.as_dict() | details)
    else:
        _show(evaluation)
    return 0


def _open(path: str, *, load: LoadOptions, window: int, hidden: bool) -> Model:
    import rdrr

    package = rdrr.open_package(path, follow_links=load.follow_links)
    longest = package.manifest.architecture.max_seq_len
    if window > longest:
        raise UsageError(
            "--window is larger than the context length of the model",
            where=path,
            expected=f"at most {longest}",
            found=window,
        )
    with status(f"loading {path}", hidden=hidden):
        model = rdrr.load(path, options=replace(load, context=window))
    announce(model, path)
    return model


def _show(evaluation: Perplexity | Comparison) -> None:
    from rdrr.evaluate import Comparison

    model = evaluation.model if isinstance(evaluation, Comparison) else evaluation
    rows: list[tuple[str, str]] = [
        ("perplexity", f"{model.perplexity:.4f}"),
        ("cross-entropy", f"{model.cross_entropy:.5f} nats per token"),
        ("predicted", f"{model.tokens:,} tokens in {model.windows:,} windows"),
    ]
    if isinstance(evaluation, Comparison):
        rows += [
            ("perplexity of the other", f"{evaluation.base.perplexity:.4f}"),
            (
                "difference",
                f"{100 * (evaluation.ratio - 1):+.3f} % "
                f"(standard error {100 * evaluation.ratio_error:.3f})",
            ),
            (
                "mean divergence",
                f"{evaluation.mean_divergence:.6f} nats "
                f"(standard error {evaluation.divergence_error:.6f})",
            ),
            ("largest divergence", f"{evaluation.largest_divergence:.4f} nats"),
            ("same top token", f"{100 * evaluation.same_top:.2f} %"),
        ]
    console().print(facts(rows))
