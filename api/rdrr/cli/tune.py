"""`rdrr tune`: find the fastest kernel parameters on an adapter for the shapes of a package."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rdrr_format.errors import UsageError

from rdrr._load_options import LoadOptions
from rdrr.cli._console import console, facts, note, print_json, table
from rdrr.cli._flags import Only, with_flags
from rdrr.cli._options import JsonFlag, PackagePath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.pass_spec import PassSpec
    from rdrr_runtime.measure.tuned import ExecutorTimes

    from rdrr._tune import TuneResult

_COLUMNS = ("step", "default us", "tuned us", "gain", "tried", "tuning key and parameters")


@with_flags
def tune(
    path: PackagePath,
    *,
    op: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Tune only this kind of op: matmul, attention, softmax, norm or dequant "
            "(repeatable).",
        ),
    ] = None,
    passes: Annotated[
        list[str] | None,
        typer.Option(
            "--pass",
            metavar="NAME",
            help="Tune only the kernels of this pass, named as in `rdrr explain`, or all "
            "(repeatable). [default: prefill, decode]",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Measure shapes again that are tuned already.")
    ] = False,
    load: Annotated[
        LoadOptions,
        Only(
            *("adapter", "webgpu", "kernel_hints", "kv_dtype", "rounded_weights", "context"),
            "follow_links",
        ),
    ],
    rounds: Annotated[
        int | None, typer.Option(min=3, help="Number of measurements per candidate.")
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare-webgpu",
            help="Tune nothing, but measure the package through wgpu and through Dawn: from then "
            "on --webgpu auto takes the faster one on this adapter.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Measure kernel parameters on the shapes of a package, and keep the best for later runs."""
    from rdrr_device.tuning import OPS
    from rdrr_manifests.package import open_package

    from rdrr._backends import resolve_hints
    from rdrr._load import context_of
    from rdrr._tune import tune_package

    ops = frozenset(name.lower() for name in op or OPS)
    unknown = sorted(ops - set(OPS))
    if unknown:
        raise UsageError("there is no such op", expected=", ".join(OPS), found=unknown[0])
    specs = _passes([name.lower() for name in passes or ("prefill", "decode")])
    package = open_package(path, follow_links=load.follow_links)
    if compare:
        return _compare(package, load, json=json)
    result = tune_package(
        package,
        resolve_hints(package, load.kernel_hints, load.rounded_weights),
        adapter=load.adapter,
        webgpu=load.webgpu,
        kv_dtype=load.kv_dtype,
        context=context_of(package, load.context),
        ops=ops,
        force=force,
        rounds=rounds,
        passes=specs,
        progress=None if json else _show_progress,
    )
    if result.note:
        note(f"warning: the existing profile is not used: {result.note}")
    if json:
        print_json(result.as_dict())
    else:
        _show(result)
    return 0


def _compare(package: Package, load: LoadOptions, *, json: bool) -> int:
    from rdrr._tune import compare_webgpu

    compared, path = compare_webgpu(
        package,
        adapter=load.adapter,
        hints=load.kernel_hints,
        kv_dtype=load.kv_dtype,
        progress=None if json else _show_progress,
    )
    decision = compared.decision
    if json:
        print_json({**asdict(decision), "seconds": dict(compared.seconds), "kept": str(path)})
    else:
        console().print(facts([("auto takes", str(decision)), ("kept in", str(path))]))
    return 0


def _passes(names: Sequence[str]) -> tuple[PassSpec, ...]:
    from rdrr_runtime.compile.pass_spec import TUNED

    known = {spec.name: spec for spec in TUNED}
    if "all" in names:
        return TUNED
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            "there is no such pass", expected=", ".join([*known, "all"]), found=unknown[0]
        )
    return tuple(spec for name, spec in known.items() if name in names)


def _show_progress(key: str, index: int, count: int) -> None:
    note(f"[{index + 1}/{count}] {key}")


def _show(result: TuneResult) -> None:
    out, tuned = console(), result.tuned
    rows = [
        (
            outcome.step,
            f"{outcome.default_seconds * 1e6:.1f}",
            f"{outcome.seconds * 1e6:.1f}",
            f"{1 - outcome.seconds / outcome.default_seconds:.1%}",
            str(1 + len(outcome.trials)),
            f"{outcome.tuning_key.name}: {outcome.chosen if outcome.changes else 'default'}",
        )
        for outcome in tuned.outcomes
    ]
    if rows:
        out.print(table(_COLUMNS, rows, right=_COLUMNS[1:5]))
        out.print()
    pairs = [("adapter", result.adapter.name), ("trials", str(tuned.trials))]
    if tuned.known:
        pairs.append(("tuned already", f"{tuned.known} shapes; --force measures them again"))
    for timed in tuned.passes:
        kept = "" if timed.kept else "; the combination is slower, so the defaults stay"
        times = f"{timed.default_seconds * 1e3:.3f} -> {timed.seconds * 1e3:.3f} ms"
        pairs.append((timed.step, f"{times} of GPU time{kept}"))
    if result.executor is not None:
        pairs.append(("one dispatch", _one_dispatch(result.executor)))
    out.print(facts([*pairs, ("profile", str(result.path))]))


def _one_dispatch(times: ExecutorTimes) -> str:
    """Return how the decode pass in one dispatch compares with dispatches."""
    timed = [trial for trial in times.trials if trial.seconds]
    if not timed:
        return "no grid runs the decode pass"
    best = min(timed, key=lambda trial: trial.seconds)
    grid = f"{best.grid.groups} workgroups of {best.grid.threads} threads"
    line = f"{times.dispatches * 1e3:.3f} -> {best.seconds * 1e3:.3f} ms of GPU time with {grid}"
    return line if times.chosen is not None else f"{line}; not faster, so dispatches stay"
