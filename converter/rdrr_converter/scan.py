"""One pass over the source before anything is written: the largest value of every tensor.

It decides what float16 cannot hold, and finds weights that are not numbers while refusing is
still cheap.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import isfinite

from rdrr_format.errors import SourceError

from rdrr_converter.reading import SourceModel
from rdrr_converter.report import Progress
from rdrr_converter.sources import SourceTensor


def scan(model: SourceModel, workers: int, progress: Progress) -> dict[str, float]:
    """Largest absolute value of each source tensor, by its source name.

    Raises:
        SourceError: A tensor holds an infinity or a NaN, or cannot be read.
    """
    sources = [tensor.source for tensor in model.tensors]
    progress.start("scan", sum(_elements(source) for source in sources))
    magnitudes: dict[str, float] = {}
    with ThreadPoolExecutor(workers) as pool:
        for source, largest in zip(sources, pool.map(SourceTensor.magnitude, sources), strict=True):
            if not isfinite(largest):
                raise SourceError(
                    "weights that are not finite",
                    where=f"{source.file}, tensor {source.name}",
                    expected="numbers",
                    found=largest,
                )
            magnitudes[source.name] = largest
            progress.advance(source.name, _elements(source))
    return magnitudes


def _elements(source: SourceTensor) -> int:
    return source.rows * source.columns
