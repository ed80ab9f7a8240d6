"""The inputs of passes over images: features of their rows, and rotations by three positions.

A pass needs no more of an image than what stands in its rows. So the host writes the features of
the rows of a pass before it runs, as it writes their tokens. A row with three positions is rotated
by a row of its own of the rope tables: they have a further row for each row of a pass behind those
of the context, and its position in the step names it. Kernels of rope know of neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_format.errors import GenerationError
from rdrr_manifests.graph import RopeSpec
from rdrr_manifests.graph.ops import Embed, Graph

from rdrr_runtime.images.rows import F32, PassImages, SeenImages
from rdrr_runtime.phases.attention.rope_tables import rope_rows

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ImageInputs:
    """The buffers of the features of a pass, and the rope tables of its plan.

    Attributes:
        images: The images that the model has seen.
        values: The values of the graph that take features, see `Graph.values_of_images`.
        features: Buffer for each of them, f32 [rows, width].
        width: Elements of a row of features in GPU memory, zeros behind the hidden size.
        ropes: The rotary embeddings and their tables.
        context: Rows of these tables before the ones for the rows of a pass.
        rows: Most rows of a pass.
    """

    images: SeenImages
    values: tuple[str, ...]
    features: tuple[BufferSlice, ...]
    width: int
    ropes: tuple[tuple[RopeSpec, BufferSlice], ...]
    context: int
    rows: int

    @property
    def first(self) -> int:
        """The token from which on tokens are those of images."""
        return self.images.first

    def are_seen_whole(self, window: int | None) -> bool:
        """Return whether rows of an image attend to all of it, see `SeenImages.are_seen_whole`."""
        return self.images.are_seen_whole(window)

    def parts(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield ids that follow each other in parts that a pass has room for.

        Raises:
            GenerationError: An image that must run in one pass is longer.
        """
        for part in self.images.parts(ids, self.rows):
            if len(part) > self.rows:
                raise GenerationError(
                    "an image has more tokens than a pass has room for, and must run in one",
                    expected=f"at most {self.rows} tokens",
                    found=len(part),
                    hint="load the model with a larger context, or take a smaller image",
                )
            yield part

    @property
    def buffers(self) -> Mapping[str, BufferSlice]:
        """The buffer of the features of each value."""
        return dict(zip(self.values, self.features, strict=True))

    @staticmethod
    def allocate(
        arena: Arena,
        graph: Graph,
        images: SeenImages,
        ropes: Sequence[BufferSlice],
        rows: int,
        context: int,
    ) -> ImageInputs:
        """Return the inputs of passes of up to `rows` rows.

        Args:
            arena: Owner of the buffers.
            graph: The graph, whose widths may be padded.
            images: The images that the model has seen.
            ropes: The rope tables, with a row for each position of the context and each of `rows`.
            rows: Most rows of a pass.
            context: Positions of the rope tables.
        """
        table = graph.ops[0]
        assert isinstance(table, Embed), "models that see embed tokens first"
        width, values = table.weight.shape[-1], graph.values_of_images(images.taps)
        buffers = tuple(arena.empty(f"images.{value}", 4 * rows * width) for value in values)
        pairs = tuple(zip(graph.ropes, ropes, strict=True))
        return ImageInputs(images, values, buffers, width, pairs, context, rows)

    def write(
        self, device: Device, ids: Sequence[int], rows: PassImages, first: int = 0
    ) -> tuple[I64, I64]:
        """Upload what rows of a pass need.

        Args:
            device: The device.
            ids: Their ids.
            rows: The rows.
            first: Number of the first of them in the pass.

        Returns:
            What the step states of each row: its token, which of an image names the slot behind
            that, see `AttentionSpec.images`; and its position in the rope tables.
        """
        count = len(rows.is_image)
        for at, length, image, start in rows.runs:
            for buffer, values in zip(self.features, image.features.parts, strict=True):
                row = 4 * self.width
                part = buffer.range(row * (first + at), row * length)
                device.write(part, self._padded(values[start : start + length]))
        for spec, table in self.ropes:
            row = 4 * spec.rotary_dim
            part = table.range(row * (self.context + first), row * count)
            device.write(part, rope_rows(spec, self.context, rows.positions))
        beyond = self.context + first + np.arange(count, dtype=np.int64)
        tokens = np.where(rows.is_image, self.first + rows.ends, ids)
        return tokens, np.where(rows.is_image, beyond, rows.positions[:, 0])

    def _padded(self, values: F32) -> F32:
        """Return features with zeros behind the hidden size, without a copy if there are none."""
        missing = self.width - values.shape[1]
        return np.ascontiguousarray(np.pad(values, ((0, 0), (0, missing))) if missing else values)
