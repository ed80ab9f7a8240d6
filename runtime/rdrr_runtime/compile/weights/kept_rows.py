"""Matrices that are rounded to Q8_0 rows once, each into memory of its own.

Int8 products of several rows need such rows of matrices that are stored otherwise, above all of
column-major blocks. To round them before each product takes two thirds of a step of 8 sequences;
to keep them takes about as much memory as Q8_0 weights.
"""

from __future__ import annotations

from rdrr_device.arena import Arena
from rdrr_device.kernels import Dispatch, Kernel
from rdrr_format.errors import DeviceError

from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.products.requantize import Requantized, requantized_apart
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


class KeptRows:
    """The rows of matrices, by the matrix. A matrix is rounded when a pass first asks for it.

    Args:
        arena: Owner of the rows.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._rows: dict[GpuWeight, Requantized] = {}
        self._waiting: list[Dispatch] = []
        self._are_weights_there = False

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        return sum(rounded.weight.size for rounded in self._rows.values())

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that `fill` runs."""
        return tuple(dispatch.kernel for dispatch in self._waiting)

    def of(self, weight: GpuWeight, label: str) -> Requantized:
        """Return a matrix as rows, which need no phases in a pass.

        Args:
            weight: The matrix.
            label: Name of the product that first reads it.

        Raises:
            DeviceError: The device has too little memory.
        """
        if weight not in self._rows:
            rounded = self._rounded(weight, label)
            self._waiting += map(as_dispatch, rounded.phases)
            self._rows[weight] = Requantized(rounded.weight, ())
            if self._are_weights_there:
                self.fill()
        return self._rows[weight]

    def _rounded(self, weight: GpuWeight, label: str) -> Requantized:
        try:
            return requantized_apart(weight, self._arena, label=label)
        except DeviceError as error:
            raise DeviceError(
                error.message,
                where=error.where,
                expected=error.expected,
                found=error.found,
                hint="use `rounded_weights` shared, or allow more memory",
            ) from error

    def fill(self) -> None:
        """Round the matrices that were asked for, now that their weights are uploaded."""
        self._are_weights_there = True
        dispatches, self._waiting = self._waiting, []
        if dispatches:
            self._arena.run(*dispatches)
