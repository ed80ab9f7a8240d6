"""The program of a vision tower, whose contexts are numbers of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rdrr_device.buffers import BufferSlice, align
from rdrr_device.capabilities import Capabilities
from rdrr_manifests.graph import VisionGraph
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.gpu_tower import FEWEST_PATCHES, LoadedTower, TowerBuffers, dry_run_tower
from rdrr_runtime.images.places import axis_frequencies
from rdrr_runtime.images.sizes import most_patches
from rdrr_runtime.phases.products.linear import CROSSOVER
from rdrr_runtime.program.export import CHUNK_BYTES, program_of
from rdrr_runtime.program.load_steps import vector_part, weight_steps
from rdrr_runtime.program.schema import Contexts, Program, Role
from rdrr_runtime.program.stated import framed
from rdrr_runtime.program.steps import LoadStep, Vector
from rdrr_runtime.program.tables import Tables
from rdrr_runtime.program.vision import Tower, TowerPart, TowerStep
from rdrr_runtime.sequences.step import Step

TOKENS: Final = 64
"""Numbers of tokens that buffers have room for are multiples of this."""


def make_tower_program(
    package: Package,
    capabilities: Capabilities,
    policy: Policy,
    *,
    most_tokens: int,
    chunk: int = CHUNK_BYTES,
) -> Program | None:
    """Return the program of a package's vision tower for a kind of device; None if it has none.

    Args:
        package: The package; no weights are read.
        capabilities: What the device can do.
        policy: Kernel hints.
        most_tokens: Most tokens of an image, besides what the recipe says.
        chunk: Most bytes of stored rows to repack at a time.

    Raises:
        FormatError: The tower cannot run from a program.
    """
    graph, processor = package.vision_graph, package.manifest.processor
    if graph is None or processor is None:
        return None
    merged = graph.vision.merge_size**2
    multiple = max(FEWEST_PATCHES, TOKENS * merged)
    least = align((CROSSOVER + 1) * merged, multiple)  # fewer tokens have other kernels
    most = max(least, align(most_patches(processor, most_tokens), multiple))
    contexts = Contexts(least=least, most=most, multiple=multiple)

    def at(patches: int) -> Program:
        tower = dry_run_tower(package, graph, capabilities, policy, patches)
        return _stated(package, graph, *tower, chunk=chunk)

    return program_of(contexts, at)


def _stated(
    package: Package, graph: VisionGraph, loaded: LoadedTower, buffers: TowerBuffers, *, chunk: int
) -> Program:
    """Return the program of a tower for one number of patches."""
    tables = Tables(dict(_roles(loaded, buffers)))
    parts = tuple(
        TowerPart(
            phases=tables.phases(part.phases),
            result=tables.range(part.out) if part.is_merged else None,
        )
        for part in buffers.parts
    )
    patch_rows, token_rows = (_step(tables, step) for step in buffers.steps)
    vision, inputs = graph.vision, buffers.inputs
    theta = vision.rope_theta
    tower = Tower(
        patches=tables.range(inputs.patches),
        nearest=tables.range(inputs.nearest),
        factors=tables.range(inputs.factors),
        rope=None if theta is None else tables.range(buffers.ropes[0]),
        of_token=tables.range(inputs.of_token) if tables.holds(inputs.of_token) else None,
        frequencies=()
        if theta is None
        else tuple(axis_frequencies(theta, vision.head_dim).tolist()),
        grid=vision.position_grid,
        sampling=vision.position_sampling,
        inputs=vision.patch_inputs,
        merge=vision.merge_size,
        width=vision.output_size,
        patch_rows=patch_rows,
        token_rows=token_rows,
        parts=parts,
    )
    weights = weight_steps(loaded.model.weights, tables, chunk)
    return framed(
        package,
        tables,
        loaded.device.capabilities,
        context=buffers.patches,
        load=(*_vectors(loaded, package, tables), *weights),
        kv_dtype=loaded.cache_dtype,
        state=buffers.steps[0].state,
        tower=tower,
    )


def _step(tables: Tables, step: Step) -> TowerStep:
    state = step.state
    assert state.segments is not None, "frames are packed as texts are"
    return TowerStep(step=tables.range(state.step), segments=tables.range(state.segments))


def _vectors(loaded: LoadedTower, package: Package, tables: Tables) -> list[LoadStep]:
    """Return the steps that load the weights of the ops which only towers have."""
    return [
        Vector(
            kind="vector",
            range=tables.range(part),
            parts=(vector_part(package, name, package.tensor(name).shape),),
        )
        for name, part in loaded.vectors.items()
    ]


def _roles(loaded: LoadedTower, buffers: TowerBuffers) -> list[tuple[int, Role]]:
    weights, states = loaded.model.weights, [step.state for step in buffers.steps]
    usual = [*weights.vectors.values(), *weights.concatenations.values()]
    steps = [part for state in states for part in (state.step, state.segments)]
    slices: dict[Role, Sequence[BufferSlice | None]] = {
        "weight": [part.slice for matrix in weights.matrices.values() for part in matrix.parts],
        "vector": [*usual, *loaded.vectors.values()],
        "rope": buffers.ropes,
        "step": steps,
    }
    return [
        (id(part.buffer), role)
        for role, parts in slices.items()
        for part in parts
        if part is not None
    ]
