"""A vision tower on a WebGPU device.

Its weights stay in GPU memory. The buffers of an image grow with the largest one so far, since an
image of a model may have ten thousand patches, and most have a few hundred.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray
from rdrr_device.arena import Arena, DeviceArena
from rdrr_device.buffers import BufferSlice
from rdrr_device.capabilities import INT8_DOT, Capabilities
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena, DryRunDevice
from rdrr_device.uploads import UploadBuffer
from rdrr_format.errors import FormatError, GenerationError, RdrrError
from rdrr_manifests.graph import Graph, RopeSpec, VisionGraph
from rdrr_manifests.graph.ops import WeightKind, uses
from rdrr_manifests.graph.padding import LANES, PaddedGraph
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.compile.lowering.builder import LoadedModel
from rdrr_runtime.compile.lowering.towers import TowerInputs, TowerPart, lower_tower, usual_ops
from rdrr_runtime.compile.lowering.values import Workspace
from rdrr_runtime.compile.weights.upload import allocate_weights
from rdrr_runtime.exec.executor import DispatchExecutor, Prepared
from rdrr_runtime.images.patches import ImagePatches
from rdrr_runtime.images.places import Places
from rdrr_runtime.images.sizes import most_patches
from rdrr_runtime.images.tower import ImageFeatures, merged_grid
from rdrr_runtime.packing import EncodedText, Segments
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.rows.interpolate import NEIGHBOURS
from rdrr_runtime.phases.weights.packing import staging_bytes
from rdrr_runtime.sequences.step import Step

FEWEST_PATCHES = 256
"""Patches that the buffers have room for at least."""

F32 = NDArray[np.float32]
F32_BYTES = 4


class GpuTower:
    """The vision tower of a package on a device.

    Args:
        package: The package.
        device: The device, which the caller closes.
        policy: Kernel hints; none when None.

    Raises:
        GenerationError: The package has no tower.
        FormatError: The tower has widths that kernels cannot compute.
        DeviceError: There is too little memory.
    """

    def __init__(self, package: Package, device: Device, policy: Policy | None = None) -> None:
        graph = package.vision_graph
        if graph is None:
            raise GenerationError("the package has no vision tower", where=package.where)
        _check_widths(graph)
        self._graph, self._device = graph, device
        self._arena = DeviceArena(device, f"{package.manifest.model_id}.vision")
        self._buffers: TowerBuffers | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            self._loaded = _allocated(graph, package, self._arena, device, policy or Policy())
            self._loaded.model.weights.fill()
            for name, vector in self._loaded.vectors.items():
                self._arena.write(vector, np.ascontiguousarray(package.dequantize(name)))
            undo.pop_all()

    def encode(self, image: ImagePatches) -> ImageFeatures:
        """Return the features of an image, see `Tower.encode`.

        Raises:
            GenerationError: The tower cannot read these patches.
            DeviceError: There is too little memory, or the device is lost.
        """
        places = Places.of(self._graph.vision, image)
        buffers = self._with_room(len(places.rows))
        buffers.write(image, places)
        *taps, embeddings = buffers.run(len(places.rows))
        return ImageFeatures(embeddings, tuple(taps), merged_grid(self._graph.vision, image))

    def _with_room(self, patches: int) -> TowerBuffers:
        if self._buffers is None or self._buffers.patches < patches:
            self._free_buffers()
            arena = DeviceArena(self._device, "vision.image")
            try:
                self._buffers = TowerBuffers(self._loaded, arena, _room_for(patches))
            except RdrrError:
                arena.dispose()  # those that were made before memory ended
                raise
        return self._buffers

    def _free_buffers(self) -> None:
        buffers, self._buffers = self._buffers, None
        if buffers is not None:
            buffers.close()

    def close(self) -> None:
        """Free the memory of the tower."""
        self._free_buffers()
        self._arena.dispose()


@dataclass(frozen=True)
class TowerFootprint:
    """The GPU memory of a vision tower, in bytes.

    Attributes:
        weights: Weights in the form in which they are kept.
        image: Buffers for the largest image.
        staging: Temporary memory for the upload of the weights.
    """

    weights: int
    image: int
    staging: int

    @property
    def total(self) -> int:
        """Bytes that stay allocated once the largest image has been seen."""
        return self.weights + self.image


def tower_footprint(
    package: Package, capabilities: Capabilities, policy: Policy, context: int
) -> TowerFootprint | None:
    """Return the memory that a package's tower would allocate; None if there is none to run.

    Args:
        package: The package; no weights are read.
        capabilities: What the device can do.
        policy: Hints.
        context: Most tokens of an image, besides what the recipe says.

    Raises:
        FormatError: No kernel can read a tensor.
    """
    graph, processor = package.vision_graph, package.manifest.processor
    if graph is None or processor is None:
        return None
    patches = _room_for(most_patches(processor, context))
    loaded, buffers = dry_run_tower(package, graph, capabilities, policy, patches)
    stored = sum(package.tensor(use.name).size for use in graph.weights())
    return TowerFootprint(loaded.arena.size, buffers.size, staging_bytes(stored))


def dry_run_tower(
    package: Package, graph: VisionGraph, capabilities: Capabilities, policy: Policy, patches: int
) -> tuple[LoadedTower, TowerBuffers]:
    """Return the tower of a package on a kind of device, with buffers that take no memory.

    Args:
        package: The package; no weights are read.
        graph: Its tower.
        capabilities: What the device can do.
        policy: Hints.
        patches: Most patches of an image.

    Raises:
        FormatError: No kernel can read a tensor.
    """
    # Nothing else is asked of the device before an image is run.
    device = cast(Device, DryRunDevice(capabilities))
    loaded = _allocated(graph, package, DryRunArena(capabilities), device, policy)
    return loaded, TowerBuffers(loaded, DryRunArena(capabilities), patches)


def _allocated(
    graph: VisionGraph, package: Package, arena: Arena, device: Device, policy: Policy
) -> LoadedTower:
    """Return a tower with memory for its weights, which are still to be written."""
    able = device.capabilities
    # Activations stay in f32 between ops.
    preferences = Preferences(policy, able.software, INT8_DOT in able.language)
    usual = _usual_graph(graph)
    weights = allocate_weights(arena, package, PaddedGraph(usual), preferences)
    common = {use.name for op in usual.ops for use in uses(op)}
    vectors = {
        use.name: arena.empty(use.name, F32_BYTES * prod(package.tensor(use.name).shape))
        for use in graph.weights()
        if use.name not in common
    }
    workspace = Workspace(arena, 0)
    model = LoadedModel(
        usual, weights, (), workspace, preferences, max_binding=able.max_binding, may_fuse=False
    )
    return LoadedTower(graph, model, vectors, arena, device, _cache_dtype(model, able))


def _cache_dtype(model: LoadedModel, able: Capabilities) -> str:
    """Return the type of keys and values.

    They are rounded to f16 where attention is faster so, if weights are as coarse.
    """
    precision = model.preferences.hint("computePrecision")
    exact = precision is not None and precision.value == "f32"
    coarse = not any(weight.form.values == "f32" for weight in model.weights.matrices.values())
    return "f16" if able.matrices and coarse and not exact else "f32"


def _room_for(patches: int) -> int:
    """Return the patches that buffers get room for: more by an eighth of a power of two at most.

    Images of slightly different sizes share buffers, and a large one takes little too much.
    """
    step = max(FEWEST_PATCHES, (1 << patches.bit_length()) // 16)
    return -(-patches // step) * step


def _check_widths(graph: VisionGraph) -> None:
    """Refuse widths that kernels cannot compute, which read four values at a time."""
    for use in graph.weights():
        if use.shape[-1] % LANES and use.kind is not WeightKind.TABLE:
            raise FormatError(
                "the vision tower runs on the backend `cpu` only",
                where=use.name,
                expected=f"rows in multiples of {LANES} values",
                found=use.shape[-1],
            )


def _usual_graph(graph: VisionGraph) -> Graph:
    """Return the ops that text models have, too, as a graph, whose rope the host computes."""
    vision = graph.vision
    theta, dim = vision.rope_theta, vision.head_dim
    ropes = () if theta is None else (RopeSpec(theta, dim, dim),)
    return Graph(usual_ops(graph), ropes, vision.num_layers, vision.hidden_size, 0, 0)


@dataclass(frozen=True)
class LoadedTower:
    """What of a tower does not depend on the image.

    Attributes:
        graph: The graph.
        model: Its weights.
        vectors: Weights of the ops that only towers have, f32, by name.
        arena: Owner of the weights.
        device: The device.
        cache_dtype: Type of keys and values.
    """

    graph: VisionGraph
    model: LoadedModel
    vectors: Mapping[str, BufferSlice]
    arena: Arena
    device: Device
    cache_dtype: str


class TowerBuffers:
    """The buffers of a tower for images of up to some number of patches, and its passes on them.

    Args:
        loaded: The tower.
        arena: Owner of the buffers.
        patches: Most patches.

    Attributes:
        arena: Owner of the buffers.
        patches: Most patches.
        inputs: What the host writes for an image.
        ropes: Rotations of each patch; none if the tower has none.
        steps: Rows of patches, and rows of tokens.
        parts: Phases, in the order of execution.
    """

    def __init__(self, loaded: LoadedTower, arena: Arena, patches: int) -> None:
        self.patches = patches
        self._loaded, self._device = loaded, loaded.device
        vision = loaded.graph.vision
        self.arena = arena
        rows = vision.merge_size**2
        tokens = patches // rows
        first = rows * np.arange(tokens, dtype=np.uint32)
        self.inputs = TowerInputs(
            arena.empty("patches", F32_BYTES * patches * vision.patch_inputs),
            loaded.vectors,
            arena.empty("nearest", F32_BYTES * patches * NEIGHBOURS),
            arena.empty("factors", F32_BYTES * patches * NEIGHBOURS),
            arena.upload("patches of tokens", np.stack([first, first + rows], axis=1)),
        )
        self.ropes = tuple(
            arena.empty("rope", F32_BYTES * patches * vision.head_dim)
            for _ in loaded.model.graph.ropes
        )
        self.steps = [
            Step(loaded.device, State.create(arena, rows, packs_texts=True))
            for rows in (patches, tokens)
        ]
        of_patches, of_tokens = (
            self._model_of(step, rows)
            for step, rows in zip(self.steps, (patches, tokens), strict=True)
        )
        cache = KvCache.allocate(arena, loaded.model.graph, patches, loaded.cache_dtype)
        self.parts = lower_tower(loaded.graph, of_patches, of_tokens, cache, self.inputs)

    @property
    def size(self) -> int:
        """Bytes of the buffers, staging memory of the patches included."""
        return self.arena.size + self.inputs.patches.size

    @cached_property
    def _upload(self) -> UploadBuffer:
        """Staging memory of the patches, which are tens of megabytes for each image."""
        return UploadBuffer(self._device, "patches", self.inputs.patches.size)

    def close(self) -> None:
        """Free the memory."""
        if "_upload" in vars(self):
            self._upload.close()
        self.arena.dispose()

    @cached_property
    def _executor(self) -> DispatchExecutor:
        return DispatchExecutor(self._device)

    @cached_property
    def _prepared(self) -> list[tuple[TowerPart, Prepared]]:
        """The parts, with their pipelines, which a dry run does not build."""
        return [(part, self._executor.prepare(part.phases)) for part in self.parts]

    def _model_of(self, step: Step, rows: int) -> tuple[LoadedModel, OpContext]:
        """Return the model with a workspace for some rows, and the context of phases on them."""
        workspace = Workspace(self.arena, rows)
        model = replace(self._loaded.model, workspace=workspace, ropes=self.ropes)
        return model, OpContext(step.state, rows, self._device.capabilities)

    def write(self, image: ImagePatches, places: Places) -> None:
        """Write the patches of an image, and what follows from their places."""
        vision, write = self._loaded.graph.vision, self._device.write
        sampling = vision.position_sampling
        nearest, factors = places.interpolation(vision.position_grid, sampling)
        self._upload.write(self.inputs.patches, [image.patches])
        write(self.inputs.nearest, np.ascontiguousarray(nearest.astype(np.uint32)))
        write(self.inputs.factors, np.ascontiguousarray(factors))
        if vision.rope_theta is not None:
            write(self.ropes[0], places.rope_table(vision.rope_theta, vision.head_dim))
        # The position of a patch is its number within its frame; all frames have the same places.
        patches, tokens = len(places.rows), len(places.rows) // vision.merge_size**2
        for step, rows in zip(self.steps, (patches, tokens), strict=True):
            ids = [0] * rows
            frame = EncodedText(ids[: rows // places.frames])
            step.write_texts(ids, Segments.of([frame] * places.frames))

    def run(self, patches: int) -> list[F32]:
        """Run the tower and return the results of the merged parts, in their order."""
        vision = self._loaded.graph.vision
        tokens = patches // vision.merge_size**2
        size = F32_BYTES * tokens * vision.output_size
        # The host copies the taps while the device computes the layers behind them.
        fetches = []
        for part, prepared in self._prepared:
            self._executor.run(prepared, tokens if part.is_merged else patches)
            if part.is_merged:
                fetches.append(self._device.fetch(part.out.range(0, size)))
        read = [fetch.collect()[0] for fetch in fetches]
        results = [values.view(np.float32).reshape(tokens, -1) for values in read]
        if not all(np.isfinite(values[:, :1]).all() for values in results):
            raise GenerationError("the vision tower gave values that are not finite")
        return results
