"""`rdrr explain`: op by op, which kernel serves it and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rdrr.cli._console import console, facts, note, print_json, table
from rdrr.cli._options import (
    Adapter,
    Context,
    JsonFlag,
    KernelHints,
    KvDtype,
    PackagePath,
    StrictHints,
    split_hints,
)

if TYPE_CHECKING:
    from rdrr._explanation import Explanation


def explain(
    path: PackagePath,
    adapter: Adapter = None,
    kernel_hint: KernelHints = None,
    strict_hints: StrictHints = False,
    kv_dtype: KvDtype = "f16",
    context: Context = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show each layer, also those served alike.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Show which kernel serves each op of decoding, of a few rows and of prefill, and why.

    Reads no weights.
    """
    from rdrr_manifests.package import open_package

    from rdrr import _explanation
    from rdrr._backends import resolve_hints
    from rdrr._load import context_of

    package = open_package(path)
    found = _explanation.explain(
        package,
        resolve_hints(package, split_hints(kernel_hint)),
        adapter=adapter,
        kv_dtype=kv_dtype,
        context=context_of(package, context),
    )
    if json:
        print_json(found.as_dict())
    else:
        _show(found, every)
    return 1 if strict_hints and found.unhonoured else 0


def _show(found: Explanation, every: bool) -> None:
    from rdrr._explanation import grouped, hint_lines

    out = console()
    software = ", a software adapter" if found.adapter.software else ""
    out.print(facts([("adapter", f"{found.adapter.name}{software}")]))
    if found.tuned.entries or found.tuned.note:
        out.print(facts([("tuned profile", found.tuned.summary)]))
    hints = hint_lines(found.policy)
    out.print(facts(hints.items() or [("hints", "none")]))
    for group in grouped(found.choices, alike=not every):
        out.print(f"\n[bold cyan]{group.title}[/]", markup=True)
        cells = [(row.op, row.kernel, row.reason) for row in group.rows]
        out.print(table(("op", "kernel", "why"), cells))
    for line in found.unhonoured:
        note(f"warning: {line}")
