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
class CombineStreams:
    """The streams x_j of a row of x, or their mean, in a form of AltUp (arXiv 2301.13310).

    mix      out_j = x_j + sum over i of c[j * count + i] x_i, the prediction
    correct  out_j = x_j + (1 + c[j]) (update - x_stream), the correction
    add      out_j = x_j + update for the streams j from `stream` on, and x_j for the others
    mean     out = (x_0 + ... + x_(count - 1)) / count

    Attributes:
        form: `mix`, `correct`, `add` or `mean`.
        count: Streams of a row.
        stream: For `correct` the stream that the update replaces where c is 0, for `add` the first
            that changes.
        update: For `correct` and `add`, as wide as a stream.
        coefficients: c, for `mix` count^2 and for `correct` count elements a row.
    """

    x: Value
    out: str
    form: str
    count: int
    stream: int = 0
    update: Value | None = None
    coefficients: Value | None = None
