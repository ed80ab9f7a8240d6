"""The statement of a dry-run plan as a program at one context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, get_args

from rdrr_device.buffers import BufferSlice
from rdrr_device.capabilities import DEFAULT_LIMITS, INT8_DOT, Capabilities
from rdrr_device.dry_run import DryRunArena
from rdrr_format.errors import FormatError
from rdrr_manifests.graph.padding import LANES
from rdrr_manifests.package import Package

from rdrr_runtime.compile.lowering.graph import Pass as LoweredPass
from rdrr_runtime.compile.pass_spec import DECODE, HIDDEN, SCORE, Logits
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.attention.rope_tables import attention_factor, axes_of_pairs, frequencies
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.sampling.logprobs import LogprobBuffers, logprobs
from rdrr_runtime.phases.sampling.sample import sample, scatter_entries
from rdrr_runtime.phases.sampling.sample_buffers import SampleBuffers, stage_words
from rdrr_runtime.program import schema, vision
from rdrr_runtime.program.checks import number
from rdrr_runtime.program.load_steps import load_steps
from rdrr_runtime.program.steps import Constant, LoadStep
from rdrr_runtime.program.tables import Tables
from rdrr_runtime.records import ENTRIES, RECORDS
from rdrr_runtime.sampling.logprobs import MAX_TOP

WORKGROUP_MEMORY = "max-compute-workgroup-storage-size"
_FEATURES = {"subgroups": "subgroups", "f16": "shader-f16"}
"""WebGPU features by the names in WGSL's `enable`."""
_VALUES = {2: "F16", 4: "F32"}
"""Types of activations by their bytes."""


def stated(
    plan: Plan, package: Package, context: int, chunk: int, *, scores: bool = False
) -> schema.Program:
    """Return the program of a plan at its context.

    Args:
        plan: A plan in a dry run.
        package: The package.
        context: The plan's context.
        chunk: Most bytes of stored rows to repack at a time.
        scores: Whether the program has a pass for the logits behind each token.

    Raises:
        FormatError: The model cannot run from a program.
    """
    _refuse(plan)
    passes = [plan.lowered(spec) for spec in (DECODE, *plan.prefills) if plan.graph.is_causal]
    vocabulary = plan.graph.vocab_size
    buffers = SampleBuffers.create(DryRunArena(plan.capabilities), vocabulary)
    tables = Tables(dict(_roles(plan, passes, buffers)))
    stated_passes = tuple(
        schema.Pass(
            name=lowered.spec.name,
            rows=lowered.rows,
            body=tables.phases(lowered.body),
            head=tables.phases(lowered.head),
            sample=tables.phases(lowered.sample),
        )
        for lowered in passes
    )
    sampler = _sampler(tables, plan, buffers, passes) if passes else None
    hidden = None
    if _has_hidden(package):
        width, values = package.graph.output_size, plan.value_bytes
        hidden = _rows_pass(tables, plan.lowered(HIDDEN), width, values, plan.state.segments)
    scored = _rows_pass(tables, plan.lowered(SCORE), vocabulary, 4) if passes and scores else None
    constants = (_stages(tables, buffers),) if passes else ()
    return framed(
        package,
        tables,
        plan.capabilities,
        context=context,
        load=(*constants, *load_steps(plan, tables, context, chunk)),
        kv_dtype=plan.cache.dtype,
        state=plan.state,
        passes=stated_passes,
        sampler=sampler,
        hidden=hidden,
        scores=scored,
        images=_images(tables, plan, context),
    )


def framed(
    package: Package,
    tables: Tables,
    capabilities: Capabilities,
    *,
    context: int,
    load: Sequence[LoadStep],
    kv_dtype: str,
    state: State,
    **facts: Any,
) -> schema.Program:
    """Return a program with what all programs have.

    Args:
        package: The package.
        tables: The tables of the program, which its phases have filled.
        capabilities: What the device can do.
        context: Its only context.
        load: The load steps.
        kv_dtype: Type of the elements of the key-value cache.
        state: The buffers of the step.
        facts: The other fields of `Program`.
    """
    # Each range that is named here must be in the table before that is stated.
    step, ring = tables.range(state.step), tables.range(state.ring)
    return schema.Program(
        model=package.manifest.model_id,
        vocabulary=package.graph.vocab_size,
        ends=tuple(package.manifest.eos_token_ids),
        kv_dtype=kv_dtype,
        step=step,
        ring=ring,
        load=tuple(load),
        contexts=schema.Contexts(least=context, most=context),
        needs=_needs(capabilities, tables),
        records={
            name: schema.RecordFields(fields=dict(table.fields), words=table.words)
            for name, table in RECORDS.items()
        },
        shaders=_side_by_side(tables),
        kernels=tuple(tables.kernels.entries),
        buffers=tuple(tables.buffers.entries),
        ranges=tuple(tables.ranges.entries),
        **{"passes": ()} | facts,
    )


def _images(tables: Tables, plan: Plan, context: int) -> vision.Images | None:
    """Return what rows of images need; None if no phase reads their features."""
    images = plan.images
    if images is None or not all(tables.holds(part) for part in images.features):
        return None
    ropes = tuple(
        vision.ImageRope(
            range=tables.range(table),
            frequencies=tuple(frequencies(spec, context).tolist()),
            factor=float(attention_factor(spec, context)),
            axes=tuple(axes_of_pairs(spec).tolist()),
        )
        for spec, table in (images.ropes if images.images.has_axes else ())
    )
    features = tuple(tables.range(part) for part in images.features)
    return vision.Images(
        first=images.first,
        features=features,
        width=images.width,
        ropes=ropes,
        whole=images.are_seen_whole(1),  # in layers with a window if in any
    )


def _side_by_side(tables: Tables) -> dict[str, str]:
    """Return the shaders in the order of their kernels' names.

    Similar shaders then lie side by side, and a program is an eighth smaller compressed.
    """
    labels = {kernel.shader: kernel.label for kernel in reversed(tables.kernels.entries)}
    return {name: tables.shaders[name] for name in sorted(labels, key=labels.__getitem__)}


def whole_of(part: BufferSlice) -> BufferSlice:
    """Return the whole buffer of a slice."""
    return BufferSlice(part.buffer, 0, part.buffer.size)


def _refuse(plan: Plan) -> None:
    """Refuse a model whose passes need the host between tokens.

    Raises:
        FormatError: They do.
    """
    if plan.host_tables:
        raise FormatError("a program cannot read tables on the host", hint="use `layer_inputs` gpu")


def _has_hidden(package: Package) -> bool:
    """Return whether something is made of the hidden states of a package."""
    output = package.manifest.inference.output
    makes = output.embedding_postprocessor is not None or output.classifier is not None
    return makes or not package.graph.is_causal


def _rows_pass(
    tables: Tables,
    lowered: LoweredPass,
    width: int,
    values: int,
    segments: BufferSlice | None = None,
) -> schema.RowsPass:
    """Return a pass whose result has rows of a width in values of some bytes."""
    padded = width if lowered.spec.logits is Logits.ALL else -(-width // LANES) * LANES
    facts = {
        "rows": lowered.rows,
        "phases": tables.phases(lowered.phases),
        "result": tables.range(lowered.logits),
        "width": width,
        "stride": padded * values,
        "dtype": _VALUES[values],
        "segments": None if segments is None else tables.range(segments),
    }
    return schema.RowsPass.model_validate(facts)


def _stages(tables: Tables, buffers: SampleBuffers) -> Constant:
    return Constant(
        kind="constant",
        range=tables.range(whole_of(buffers.stages)),
        words=tuple(stage_words().reshape(-1).tolist()),
    )


def _roles(
    plan: Plan, passes: Sequence[LoweredPass], sampler: SampleBuffers
) -> Iterator[tuple[int, schema.Role]]:
    weights, cache = plan.weights, plan.cache
    matrices = (*weights.matrices.values(), *weights.stacks.values())
    caches = cache.layers.values()
    slices: dict[schema.Role, Sequence[BufferSlice]] = {
        "weight": [part.slice for matrix in matrices for part in matrix.parts],
        "vector": [*weights.vectors.values(), *weights.concatenations.values()],
        "kv": [*(layer.keys for layer in caches), *(layer.values for layer in caches)],
        "state": cache.states.whole,
        "rope": plan.ropes,
        "step": [part for part in (plan.state.step, plan.state.segments) if part is not None],
        "ring": [plan.state.ring],
        "logits": [lowered.logits for lowered in passes],
        "sampler": [sampler.params, sampler.counts, sampler.bias, sampler.mask, sampler.entries],
        "constant": [sampler.stages],
    }
    assert set(slices) | {"value"} == set(get_args(schema.Role))
    for role, parts in slices.items():
        yield from ((id(part.buffer), role) for part in parts)


def _sampler(
    tables: Tables, plan: Plan, buffers: SampleBuffers, passes: Sequence[LoweredPass]
) -> schema.Sampler:
    logits = passes[0].logits
    if any(tables.range(lowered.logits) != tables.range(logits) for lowered in passes):
        raise FormatError("the passes of the model leave their logits in different places")

    def sampling(top_k: bool, top_p: bool) -> schema.Sampling:
        phases = sample(buffers, plan.state, logits, (top_k, top_p), "sample")
        return schema.Sampling(top_k=top_k, top_p=top_p, phases=tables.phases(phases))

    ring = plan.state.ring.size // 4
    logged = LogprobBuffers.create(DryRunArena(plan.capabilities), ring)
    vocabulary = plan.graph.vocab_size
    recording = logprobs(logged, plan.state, logits, vocabulary=vocabulary, top=MAX_TOP)
    return schema.Sampler(
        params=tables.range(buffers.params),
        counts=tables.range(buffers.counts_of(0)),
        bias=tables.range(buffers.bias),
        mask=tables.range(buffers.mask),
        entries=tables.range(buffers.entries),
        most_entries=ENTRIES,
        scatter=tables.phase(scatter_entries(buffers, "sample.set")),
        samplings=tuple(
            sampling(top_k, top_p) for top_k, top_p in product((False, True), repeat=2)
        ),
        logprobs=schema.Logprobs(
            top=MAX_TOP, records=tables.range(logged.records), phases=tables.phases(recording)
        ),
    )


def _needs(capabilities: Capabilities, tables: Tables) -> schema.Needs:
    text = "\n".join(tables.shaders.values())
    kernels = tables.kernels.entries
    threads = max(int(number(kernel.constants.get("WG", 1))) for kernel in kernels)
    limits = {
        "max-storage-buffers-per-shader-stage": max(len(kernel.bindings) for kernel in kernels),
        "max-compute-invocations-per-workgroup": threads,
        "max-compute-workgroup-size-x": threads,
        WORKGROUP_MEMORY: capabilities.limit(WORKGROUP_MEMORY),
    }
    return schema.Needs(
        features=tuple(name for key, name in _FEATURES.items() if f"enable {key};" in text),
        language=(INT8_DOT,) if "dot4" in text else (),
        limits={name: least for name, least in limits.items() if least > DEFAULT_LIMITS[name]},
    )
