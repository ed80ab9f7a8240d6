"""Parallel residual streams (AltUp, arXiv 2301.13310): their beginning, their use and their end.

A row of the value holds all streams. A layer mixes them, reads one of them, the active one, and
corrects all of them by what it computes.
"""

from __future__ import annotations

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import (
    AppendStream,
    CombineStreams,
    Linear,
    Norm,
    Op,
    Slice,
    StreamCoefficients,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.models.manifest import Manifest

FLOOR = 1e-5
"""Least mean square of a stream where its magnitude is matched to that of the first."""


class AltUp:
    """The ops on the streams of one model.

    Args:
        manifest: A manifest with `altupNumInputs`.
        names: Names of the tensors.
    """

    def __init__(self, manifest: Manifest, names: TensorNames) -> None:
        sizes = manifest.architecture
        self.count = sizes.altup_num_inputs or 1
        self.active = sizes.altup_active_index or 0
        self.hidden = sizes.hidden_size
        self.eps = manifest.inference.normalization.rms_norm_eps
        self._names = names

    def begin(self, stream: str) -> tuple[Op, ...]:
        """Return the ops that make the streams from the embedded tokens, in one value.

        Every further stream is a projection of the first, with its magnitude.
        """
        ops: list[Op] = []
        streams = stream
        for index in range(1, self.count):
            weight = self._body(f"altup_projections.{index - 1}", self.hidden)
            ops.append(Linear(stream, f"altup.projected{index}", weight))
            ops.append(AppendStream(streams, f"altup.projected{index}", f"altup{index}", FLOOR))
            streams = f"altup{index}"
        return tuple(ops)

    def end(self, streams: str) -> tuple[Op, ...]:
        """Return the ops that average the streams after the last layer."""
        first = "altup.unembedded0"
        ops: list[Op] = [self._part(streams, first, 0)]
        joined = first
        for index in range(1, self.count):
            part, out = f"altup.part{index}", f"altup.unembedded{index}"
            weight = self._body(f"altup_unembed_projections.{index - 1}", self.hidden)
            ops.append(self._part(streams, part, index))
            ops.append(Linear(part, f"{part}.projected", weight))
            ops.append(AppendStream(joined, f"{part}.projected", out, FLOOR))
            joined = out
        return (*ops, CombineStreams(joined, "altup.mean", "mean", self.count))

    def predict(self, layer: int, streams: str) -> tuple[Op, ...]:
        """Return the ops that mix the streams before a layer."""
        stem = f"l{layer}.altup"
        return (
            self._part(streams, f"{stem}.before", self.active),
            *self._coefficients(layer, f"{stem}.before", f"{stem}.mix", "prediction_coefs"),
            CombineStreams(
                streams, f"{stem}.predicted", "mix", self.count, coefficients=f"{stem}.mix"
            ),
        )

    def activate(self, streams: str, out: str) -> Slice:
        """Return the op that takes the active stream."""
        return self._part(streams, out, self.active)

    def correct(self, layer: int, streams: str, update: str) -> tuple[Op, ...]:
        """Return the ops that correct the streams by what a layer computes."""
        stem = f"l{layer}.altup"
        return (
            *self._coefficients(layer, update, f"{stem}.correction", "correction_coefs"),
            CombineStreams(
                streams,
                f"{stem}.corrected",
                "correct",
                self.count,
                self.active,
                update,
                f"{stem}.correction",
            ),
        )

    def _coefficients(self, layer: int, x: str, out: str, part: str) -> tuple[Op, ...]:
        outputs = self.count**2 if part == "prediction_coefs" else self.count
        gain = self._vector(layer, "router_norm.weight", self.hidden)
        router = self._vector(layer, "modality_router.weight", self.count, self.hidden)
        weight = self._vector(layer, f"{part}.weight", outputs, self.count)
        return (
            Norm(x, f"{out}.in", gain, self.eps, False),
            StreamCoefficients(f"{out}.in", out, router, weight, 1.0 / self.hidden),
        )

    def _part(self, streams: str, out: str, index: int) -> Slice:
        whole = self.count * self.hidden
        return Slice(streams, out, 1, whole, index * self.hidden, self.hidden)

    def _body(self, part: str, size: int) -> WeightUse:
        return WeightUse(self._names.body(f"{part}.weight"), (size, size))

    def _vector(self, layer: int, part: str, *shape: int) -> WeightUse:
        return WeightUse(self._names.layer(layer, f"altup.{part}"), shape, WeightKind.VECTOR)
