"""What the weights of a model are multiplied with while it reads a text: an importance matrix.

It runs in torch on the CPU, in windows that begin anew, as `rdrr.evaluate` does. The head is left
out, as llama.cpp leaves it out: its inputs say little of what its errors cost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.locations import local_path

from rdrr._backends import OpenedBackend, load_checked
from rdrr._load import context_of
from rdrr._model import Model
from rdrr.evaluate import WINDOW, ProgressCallback, perplexity

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rdrr_manifests.graph import WeightUse
    from torch import Tensor


@dataclass(frozen=True)
class Importance:
    """An importance matrix that was written.

    Attributes:
        path: Its file.
        entries: Entries in it.
        tokens: Tokens of the text that were predicted.
        perplexity: Of the model on the text.
    """

    path: str
    entries: int
    tokens: int
    perplexity: float

    def as_dict(self) -> dict[str, Any]:
        """The figures for `--json`."""
        return asdict(self)


def measure_importance(
    package: str | Path,
    text: str,
    out: Path,
    *,
    origin: str = "text",
    window: int = WINDOW,
    limit: int | None = None,
    overwrite: bool = False,
    follow_links: bool = False,
    progress: ProgressCallback | None = None,
) -> Importance:
    """Read a text with a model and write what its weights were multiplied with.

    Args:
        package: Folder or URL; the less it was quantized, the better.
        text: The text.
        out: File to make, a GGUF that `rdrr convert --imatrix` and llama.cpp read.
        origin: Name of the text, which is written too.
        window: Tokens of a window.
        limit: Most tokens of the text to use.
        overwrite: Replace `out`.
        follow_links: Follow links that lead out of the package's folder.
        progress: Told after each window.

    Raises:
        UsageError: The text is too short, the window too long, or `out` is there.
        StoreError: There is no package, or `out` cannot be written.
        ManifestError: The package is not sound.
        ShardError: A shard has another hash than the manifest states.
    """
    from rdrr_converter.export.imatrix import Origin, check_free, write_imatrix
    from rdrr_manifests.graph.ops import Experts
    from rdrr_manifests.package import open_package
    from rdrr_runtime.reference.backend import CpuBackend

    out = local_path(out)
    check_free(out, overwrite=overwrite)
    opened = open_package(package, follow_links=follow_links)
    seen = _Sums()
    for op in opened.graph.ops:
        if isinstance(op, Experts):
            # A file has a row for each expert, those that no token reaches included.
            for use in (*op.gates, *op.ups, *op.downs):
                seen.expect(use)
    backend, _ = load_checked(
        opened,
        "cached",
        lambda: CpuBackend(opened, context=context_of(opened, window), observe=seen.add),
    )
    with Model(opened, OpenedBackend(backend, "backend cpu (torch)", ())) as model:
        found = perplexity(model, text, window=window, limit=limit, progress=progress)
    entries = write_imatrix(out, seen.activations(), Origin(origin, found.windows, window))
    return Importance(str(out), entries, found.tokens, found.perplexity)


class _Sums:
    """Sums of squares of the inputs of each weight, in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, npt.NDArray[np.float64]] = {}
        self._counts: dict[str, int] = {}

    def expect(self, use: WeightUse) -> None:
        """List a weight [N, K] that may get no rows."""
        import numpy as np

        self._sums[use.name] = np.zeros(use.shape[1], np.float64)
        self._counts[use.name] = 0

    def add(self, use: WeightUse, rows: Tensor) -> None:
        """Count rows [n, K] of a weight."""
        squares = rows.double().square().sum(dim=0).numpy()
        if use.name in self._sums:
            self._sums[use.name] += squares
        else:
            self._sums[use.name] = squares
        self._counts[use.name] = self._counts.get(use.name, 0) + len(rows)

    def activations(self) -> dict[str, Any]:
        """What was seen, by the names of the weights."""
        from rdrr_converter.export.imatrix import Activations

        return {name: Activations(sums, self._counts[name]) for name, sums in self._sums.items()}
