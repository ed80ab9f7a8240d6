"""The ops of parallel residual streams."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.weights import Value, WeightUse


@dataclass(frozen=True)
class AppendStream:
    """out = [x, y * rms(x_0) / max(rms(y), sqrt(floor))]: y becomes the last stream of x.

    A row of x consists of streams as wide as y, of which x_0 is the first; rms is the root of the
    mean square.
    """

    x: Value
    y: Value
    out: str
    floor: float


@dataclass(frozen=True)
class MeanOfStreams:
    """out = (x_0 + ... + x_(count - 1)) / count, where x_j are the streams of a row of x."""

    x: Value
    out: str
    count: int


@dataclass(frozen=True)
class StreamCoefficients:
    """out = tanh(factor * x R^T) W^T.

    Attributes:
        router: R, [streams, features of x].
        weight: W, [coefficients, streams].
    """

    x: Value
    out: str
    router: WeightUse
    weight: WeightUse
    factor: float


@dataclass(frozen=True)
class MixStreams:
    """out_j = x_j + sum over i of c[j * count + i] x_i: AltUp's prediction (arXiv 2301.13310).

    Attributes:
        coefficients: c, count^2 elements a row.
        count: Streams of a row.
    """

    x: Value
    coefficients: Value
    out: str
    count: int


@dataclass(frozen=True)
class CorrectStreams:
    """out_j = x_j + (1 + c[j]) (update - x_active): AltUp's correction.

    Attributes:
        coefficients: c, count elements a row.
        count: Streams of a row.
        active: The stream that the update replaces where c is 0.
    """

    x: Value
    update: Value
    coefficients: Value
    out: str
    count: int
    active: int


@dataclass(frozen=True)
class AddToStreams:
    """out_j = x_j + update for the streams j of a row from `first` on, and x_j for the others."""

    x: Value
    update: Value
    out: str
    count: int
    first: int
