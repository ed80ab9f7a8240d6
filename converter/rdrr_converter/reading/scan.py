"""A first pass over the source that finds the largest magnitudes of every tensor and its lines.

The magnitudes decide which tensors float16 cannot hold. The pass also finds infinite and NaN
weights before anything is written.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from rdrr_converter.checkpoint.magnitudes import Magnitudes, measure_finite
from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.progress import Progress
from rdrr_converter.reading.model import SourceModel


def scan(model: SourceModel, workers: int, progress: Progress) -> dict[str, Magnitudes]:
    """Return the largest absolute values of each source tensor, by its name in the source.

    Raises:
        SourceError: A tensor contains an infinity or a NaN, or cannot be read.
    """
    sources = [tensor.source for tensor in model.tensors]
    progress.start("scan", sum(_elements(source) for source in sources))
    magnitudes: dict[str, Magnitudes] = {}
    with ThreadPoolExecutor(workers) as pool:
        scanned = pool.map(measure_finite, sources)
        for source, measured in zip(sources, scanned, strict=True):
            magnitudes[source.name] = measured
            progress.advance(source.name, _elements(source))
    return magnitudes


def _elements(source: SourceTensor) -> int:
    return source.rows * source.columns
