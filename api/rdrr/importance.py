"""Compute an importance matrix: the mean square of each weight's input columns over a text.

The model runs in torch, in windows as in `rdrr.evaluate`. The output head is omitted, as
in llama.cpp: the size of its inputs says little about the effect of its errors. What is measured
with gradients (`sensitivity`) has the head, and is comparable between tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.extras import import_extra
from rdrr_format.locations import local_path

from rdrr._reference import opened_reference
from rdrr.evaluate import (
    WINDOW,
    Perplexity,
    ProgressCallback,
    perplexity,
    token_ids,
    windows,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rdrr_converter.export.imatrix import Activations
    from rdrr_manifests.graph import WeightUse
    from rdrr_runtime.reference.backend import CpuBackend
    from rdrr_runtime.reference.sensitivity import Sensitivity
    from torch import Tensor


@dataclass(frozen=True)
class Importance:
    """The result of writing an importance matrix.

    Attributes:
        path: Path of the file.
        entries: Number of weights in the file.
        tokens: Number of tokens that were predicted.
        perplexity: Perplexity of the model on the text.
    """

    path: str
    entries: int
    tokens: int
    perplexity: float

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)


def measure_importance(
    package: str | Path,
    text: str,
    out: Path,
    *,
    origin: str = "text",
    window: int = WINDOW,
    limit: int | None = None,
    sensitivity: bool = False,
    device: str = "cpu",
    overwrite: bool = False,
    follow_links: bool = False,
    progress: ProgressCallback | None = None,
) -> Importance:
    """Run a model over a text and write the importance matrix of its weights.

    Args:
        package: Folder or URL of the package; the less it is quantized, the better.
        text: The text.
        out: File to write, a GGUF that `rdrr.convert` (as `imatrix`) and llama.cpp read.
        origin: Name of the text, which the file records.
        window: Tokens of a window.
        limit: Most tokens of the text to use; all when None.
        sensitivity: Measure how much the errors of each row and column change the predictions,
            which `rdrr.convert` needs for `size`. Gradients take several times as long.
        device: Device of torch that runs the model, such as cuda.
        overwrite: Replace `out` if it exists.
        follow_links: Follow links that lead out of the package's folder.
        progress: Called after each window.

    Raises:
        DeviceError: torch finds no such device, or it has too little memory.
        UsageError: The text is too short, the window is too long, `out` exists, or torch is not
            installed.
        StoreError: There is no package, or `out` cannot be written.
        ManifestError: The manifest has faults.
        ShardError: The hash of a shard differs from the one in the manifest.
    """
    import_extra("torch", "torch", "measuring an importance matrix")
    from rdrr_converter.devices.torch_device import check_torch_device, memory_errors
    from rdrr_converter.export.imatrix import Origin, check_free, write_imatrix
    from rdrr_manifests.graph.ops import Experts
    from rdrr_manifests.package import open_package

    out = local_path(out)
    check_free(out, overwrite=overwrite)
    check_torch_device(device)
    opened = open_package(package, follow_links=follow_links)
    sums = _SquareSums()
    for op in opened.graph.ops:
        if isinstance(op, Experts):
            # The file has a row for each expert, including those that no token is routed to.
            for use in (*op.gates, *op.ups, *op.downs):
                sums.expect(use)
    observe = None if sensitivity else sums.add
    with (
        memory_errors("measuring importance", "a smaller `window`, or `device` cpu"),
        opened_reference(opened, window, device, observe) as (model, backend),
    ):
        if sensitivity:
            ids = token_ids(model, text, limit)
            measured, seen = _sensitivities(backend, windows(ids, window, progress))
        else:
            measured = perplexity(model, text, window=window, limit=limit, progress=progress)
            seen = sums.activations()
    entries = write_imatrix(out, seen, Origin(origin, measured.windows, window))
    return Importance(str(out), entries, measured.tokens, measured.perplexity)


def _sensitivities(
    backend: CpuBackend, parts: Iterable[Sequence[int]]
) -> tuple[Perplexity, dict[str, Activations]]:
    """Sum the sensitivities of all windows; return them with the perplexity of the text."""
    from rdrr_converter.export.imatrix import Activations

    totals: dict[str, Sensitivity] = {}
    loss, tokens, count = 0.0, 0, 0
    for part in parts:
        measured = backend.sensitivity(part, seed=count)
        for name, matrix in measured.matrices.items():
            totals[name] = totals[name] + matrix if name in totals else matrix
        loss, tokens, count = loss + measured.loss, tokens + len(part) - 1, count + 1
    seen = {
        name: Activations(matrix.columns, tokens, matrix.rows) for name, matrix in totals.items()
    }
    return Perplexity(tokens, count, loss / tokens), seen


class _SquareSums:
    """Sums over tokens of the squared inputs of each weight, in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, npt.NDArray[np.float64]] = {}
        self._counts: dict[str, int] = {}

    def expect(self, use: WeightUse) -> None:
        """Add a weight [N, K] that may get no input."""
        import numpy as np

        self._sums[use.name] = np.zeros(use.shape[1], np.float64)
        self._counts[use.name] = 0

    def add(self, use: WeightUse, rows: Tensor) -> None:
        """Add the input rows [n, K] of a weight."""
        squares = rows.double().square().sum(dim=0).cpu().numpy()
        if use.name in self._sums:
            self._sums[use.name] += squares
        else:
            self._sums[use.name] = squares
        self._counts[use.name] = self._counts.get(use.name, 0) + len(rows)

    def activations(self) -> dict[str, Any]:
        """Return the sums and the numbers of rows, by the names of the weights."""
        from rdrr_converter.export.imatrix import Activations

        return {name: Activations(sums, self._counts[name]) for name, sums in self._sums.items()}
