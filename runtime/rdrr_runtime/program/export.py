"""Making the program of a package from plans at several contexts, without a device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from rdrr_device.capabilities import Capabilities
from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import Attention
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.exec.plan import dry_run_plan
from rdrr_runtime.program.affine import joined
from rdrr_runtime.program.files import read_program
from rdrr_runtime.program.schema import Contexts, Program
from rdrr_runtime.program.stated import stated

LEAST_CONTEXT = 2048
"""Below this the number of keys that a pass prepares for is not affine in the context."""

MULTIPLE = 256
"""Contexts are multiples of this, so that sizes rounded to whole blocks are affine."""

CHUNK_BYTES = 8 << 20
"""Most bytes of stored rows to repack at a time, which a player holds beside a shard."""


def make_program(
    package: Package,
    capabilities: Capabilities,
    policy: Policy,
    *,
    most_context: int | None = None,
    kv_dtype: str = "f16",
    chunk: int = CHUNK_BYTES,
    scores: bool = False,
) -> Program:
    """Return the program of a package for a kind of device.

    Args:
        package: The package; no weights are read.
        capabilities: What the device can do.
        policy: Kernel hints.
        most_context: Largest context; the model's own when None.
        kv_dtype: Type of the cache's elements: `f16`, `f32` or `q8_0`.
        chunk: Most bytes of stored rows to repack at a time.
        scores: Whether the program has a pass for the logits behind each token.

    Raises:
        FormatError: The model cannot run from a program, or not at all these contexts.
        UsageError: The KV dtype is unknown, or the model does not support it.
    """
    manifest = package.manifest

    def at(context: int) -> Program:
        plan = dry_run_plan(package, capabilities, policy, context, kv_dtype)
        return stated(plan, package, context, chunk, scores=scores)

    most = most_context or manifest.architecture.max_seq_len
    return program_of(contexts_of(package.graph, most), at)


def program_of(contexts: Contexts, at: Callable[[int], Program]) -> Program:
    """Return the program of a range of contexts, given those of single ones.

    Raises:
        FormatError: They cannot be joined.
    """
    samples = [
        (context, at(context).model_dump(mode="json", exclude={"contexts"}))
        for context in sampled(contexts)
    ]
    data = joined(samples, contexts.multiple) | {"contexts": contexts.model_dump()}
    return read_program(json.dumps(data).encode())


def contexts_of(graph: Graph, most: int) -> Contexts:
    """Return the contexts that one program can serve, up to a largest one.

    A context of fewer than `LEAST_CONTEXT` slots, or of fewer than a sliding window, gets a program
    of its own, and so does the largest context of a model whose attention is not causal: its texts
    run in one pass, whose kernels depend on the number of rows.
    """
    windows = (op.window or op.chunk or 0 for op in graph.ops if isinstance(op, Attention))
    least = -(-max(LEAST_CONTEXT, *windows) // MULTIPLE) * MULTIPLE
    if most < least + MULTIPLE or not graph.is_causal:
        return Contexts(least=most, most=most)
    return Contexts(least=least, most=most // MULTIPLE * MULTIPLE, multiple=MULTIPLE)


def sampled(contexts: Contexts) -> Sequence[int]:
    """Return the contexts to plan at: the two smallest, the largest, and two between them."""
    least, most = contexts.least, contexts.most
    chosen = (least, least + contexts.multiple, 3 * least, 5 * least, most)
    return sorted({context for context in chosen if context <= most})
