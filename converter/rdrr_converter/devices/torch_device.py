"""Encoding of blocks with torch operations, on a CUDA device.

torch comes with the extra `torch`, and the same operations can be tested on the CPU. Encoding
takes up to two thousand kernel launches whatever the number of blocks; they are captured once as a
CUDA graph, which is then launched as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from rdrr_format.errors import DeviceError
from rdrr_format.extras import import_extra

from rdrr_converter.devices._base import BLOCK, Bytes, Flags, Weights, device_errors
from rdrr_converter.devices._torch_affine import pack_fifth, pack_low, quantize_affine
from rdrr_converter.devices._torch_signed import quantize_q6_k

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import CUDAGraph

CAPACITY = 1 << 16
"""Maximum number of blocks in one call: 16 million weights, about 1 GiB per type with all
intermediate values."""


def _q4_k(weights: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    head, codes, fallback = quantize_affine(weights, "Q4_K", 15.0)
    return torch.cat([head, pack_low(codes)], dim=1), fallback


def _q5_k(weights: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    head, codes, fallback = quantize_affine(weights, "Q5_K", 31.0)
    return torch.cat([head, pack_fifth(codes), pack_low(codes)], dim=1), fallback


QUANTIZERS: Mapping[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = MappingProxyType(
    {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": quantize_q6_k}
)
"""Functions from blocks [n, 256] to bytes [n, bytes of a block] and fallback flags [n], by storage
type."""


def check_torch_device(name: str) -> None:
    """Check that torch can compute on a device.

    Raises:
        DeviceError: It is `cuda`, and torch finds none.
    """
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "torch finds no CUDA device",
            found=f"torch {torch.__version__}",
            hint="install torch with CUDA, or use `device` wgpu or cpu",
        )


@contextmanager
def memory_errors(what: str, hint: str) -> Iterator[None]:
    """Turn torch's report that CUDA has no memory left into a `DeviceError`.

    Args:
        what: What is computed, as the beginning of a sentence.
        hint: What to do about it.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"{what} takes more memory than CUDA has free",
            found=str(error).partition("\n")[0].partition(". ")[0],
            hint=hint,
        ) from error


class TorchDevice:
    """A `BlockDevice` that runs torch operations.

    Args:
        device: Name of the torch device: `cuda`, or `cpu` for tests.
        capacity: Maximum number of blocks in one call.

    Raises:
        DeviceError: torch cannot use the device.
        UsageError: torch is not installed.
    """

    types = frozenset(QUANTIZERS)

    def __init__(self, device: str = "cuda", capacity: int = CAPACITY) -> None:
        import_extra("torch", "torch", "encoding on a CUDA device")
        import torch

        check_torch_device(device)
        self.capacity = capacity
        self.device = torch.device(device)
        self.name = device
        with device_errors(f"opening {device}", RuntimeError):
            if self.device.type == "cuda":
                self.name = torch.cuda.get_device_name(self.device)
            self._weights = torch.zeros((capacity, BLOCK), dtype=torch.float32, device=self.device)
        self._graphs: dict[str, tuple[CUDAGraph, Tensor, Tensor]] = {}

    def encode(self, dtype: str, parts: Sequence[Weights]) -> tuple[Bytes, Flags]:
        """See `BlockDevice.encode`."""
        import torch

        with device_errors(f"encoding {dtype} on {self.name}", RuntimeError), torch.no_grad():
            self.upload(parts)
            blocks, fallback = self.run(dtype, sum(map(len, parts)))
            return blocks.cpu().numpy(), fallback.cpu().numpy()

    def upload(self, parts: Sequence[Weights]) -> None:
        """Copy blocks to the device as float32, for `run` to encode."""
        import torch

        place = 0
        for part in parts:
            here = torch.from_numpy(np.require(part, requirements=["C", "W"]))
            if part.dtype == np.uint16:
                here = here.view(torch.bfloat16)
            # Copying into a tensor of another type would convert on the CPU, so move first.
            self._weights[place : place + len(part)] = here.to(self.device)
            place += len(part)

    def run(self, dtype: str, count: int) -> tuple[Tensor, Tensor]:
        """Encode the first `count` uploaded blocks; the results are valid until the next run."""
        if self.device.type != "cuda":
            return QUANTIZERS[dtype](self._weights[:count])
        if dtype not in self._graphs:
            self._graphs[dtype] = self._capture(dtype)
        graph, blocks, fallback = self._graphs[dtype]
        graph.replay()
        return blocks[:count], fallback[:count]

    def _capture(self, dtype: str) -> tuple[CUDAGraph, Tensor, Tensor]:
        """Capture a CUDA graph that encodes a full buffer, and return it with its results."""
        import torch

        QUANTIZERS[dtype](self._weights)  # kernels must be loaded before the capture
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            blocks, fallback = QUANTIZERS[dtype](self._weights)
        return graph, blocks, fallback

    def close(self) -> None:
        """Free the device's memory; the device must not be used afterwards."""
        import torch

        self._graphs.clear()
        del self._weights
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
