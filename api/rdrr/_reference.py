"""The reference in torch, on the CPU or on CUDA, for what is measured of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rdrr._backends import OpenedBackend, load_checked
from rdrr._load import context_of
from rdrr._model import Model

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.reference.backend import CpuBackend
    from rdrr_runtime.reference.run import Observer


@contextmanager
def opened_reference(
    package: Package, context: int | None, device: str, observe: Observer | None = None
) -> Iterator[tuple[Model, CpuBackend]]:
    """Load a package in float32, and free it at the end of a block.

    Args:
        package: The package.
        context: Slots of the key-value cache; None for as many as `rdrr.load` takes.
        device: Device of torch, such as cuda.
        observe: Called with each weight of a linear layer or expert and the rows it multiplies.

    Yields:
        The model and its backend.
    """
    from rdrr_runtime.reference.backend import CpuBackend

    slots = context_of(package, context)
    backend, _ = load_checked(
        package,
        "cached",
        lambda: CpuBackend(package, context=slots, observe=observe, device=device),
    )
    with Model(package, OpenedBackend(backend, f"torch on {device}", ())) as model:
        yield model, backend
