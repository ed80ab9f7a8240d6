"""`rdrr explain`: which kernel serves each op, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rdrr._load_options import LoadOptions
from rdrr.cli._console import console, facts, heading, note, print_json, table
from rdrr.cli._flags import Only, with_flags
from rdrr.cli._options import CapabilitiesFile, JsonFlag, PackagePath

if TYPE_CHECKING:
    from rdrr_runtime.phases.phase import Phase, Work

    from rdrr._explanation import Explanation


@with_flags
def explain(
    path: PackagePath,
    *,
    load: Annotated[
        LoadOptions,
        Only(
            *("adapter", "webgpu", "kernel_hints", "strict_hints", "kv_dtype", "layer_inputs"),
            *("rounded_weights", "context", "follow_links"),
        ),
    ],
    capabilities: CapabilitiesFile = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Show every layer, instead of joining layers with equal kernels."
        ),
    ] = False,
    phases: Annotated[
        bool,
        typer.Option(
            "--phases", help="Show the phases of each pass in the order in which they run instead."
        ),
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Show which kernel serves each op of decoding, of small batches and of prefill, and why.

    No weights are read, so a manifest without its shards is enough. If it has an execution graph,
    which the public runtime DOPPLER runs, the kernel that serves each of its steps is shown too.
    """
    from rdrr_manifests.package import open_package

    from rdrr import _explanation
    from rdrr._backends import resolve_hints, table_policies
    from rdrr._load import context_of

    package = open_package(path, follow_links=load.follow_links, bare=True)
    hints = resolve_hints(package, load.kernel_hints, load.rounded_weights)
    explanation = _explanation.explain(
        package,
        table_policies(package, hints, load.layer_inputs)[0],
        adapter=capabilities or load.adapter,
        webgpu=load.webgpu,
        kv_dtype=load.kv_dtype,
        context=context_of(package, load.context),
    )
    if json:
        print_json(explanation.as_dict())
    elif phases:
        _show_phases(explanation)
    else:
        _show(explanation, every)
    return 1 if load.strict_hints and explanation.unhonoured else 0


def _show(explanation: Explanation, every: bool) -> None:
    from rdrr._executor import describe
    from rdrr._explanation import grouped, hint_lines

    out = console()
    software = ", a software adapter" if explanation.adapter.software else ""
    out.print(facts([("adapter", f"{explanation.adapter.name}{software}")]))
    if explanation.webgpu is not None:
        out.print(facts([("WebGPU", str(explanation.webgpu))]))
    out.print(facts([("token in one dispatch", describe(explanation.adapter))]))
    if explanation.tuned.entries or explanation.tuned.note:
        out.print(facts([("tuned profile", explanation.tuned.summary)]))
    hints = hint_lines(explanation.policy)
    out.print(facts(hints.items() or [("hints", "none")]))
    for group in grouped(explanation.choices, alike=not every):
        heading(out, group.title)
        cells = [(row.op, row.kernel, row.reason) for row in group.rows]
        out.print(table(("op", "kernel", "why"), cells))
    if explanation.served:
        heading(out, "execution graph of the manifest")
        rows = [
            (step.step.stage, step.step.name, step.kernel, " or ".join(step.kernels) or "nothing")
            for step in explanation.served
        ]
        out.print(table(("stage", "step", "its kernel", "served by"), rows))
    for line in explanation.unhonoured:
        note(f"warning: {line}")


def _show_phases(explanation: Explanation) -> None:
    out = console()
    for planned in explanation.passes:
        rows = "1 row" if planned.rows == 1 else f"up to {planned.rows} rows"
        count = f"{len(planned.phases)} phases"
        heading(out, f"{planned.spec.name}, {rows}, {count}")
        cells = [
            (phase.label, phase.name, str(phase.record.threads), _work(phase.work), _uses(phase))
            for phase in planned.phases
        ]
        out.print(table(("op", "function", "threads", "calls", "reads -> writes"), cells))


def _work(work: Work) -> str:
    if work.rows is None:
        return f"{work.items:,}"
    return f"{work.items:,} x rows" if work.rows == 1 else f"{work.items:,} x rows/{work.rows}"


def _uses(phase: Phase) -> str:
    written = [binding.name for binding in phase.bindings if binding.access.value == "storage"]
    read = [binding.name for binding in phase.bindings if binding.name not in written]
    return f"{' '.join(read)} -> {' '.join(written)}"
