"""Blocks encoded by torch, operation by operation, on a CUDA device.

torch is there anyway and brings all that it needs, and what it computes can be tested on the CPU.
Its price are up to two thousand launches whatever the number of blocks, which CUDA records once and
then takes as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from rdrr_format.errors import DeviceError

from rdrr_converter.devices._base import BLOCK, Bytes, Flags, Weights, device_errors
from rdrr_converter.devices._torch_affine import pack_fifth, pack_low, quantize_affine
from rdrr_converter.devices._torch_signed import quantize_q6_k

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import CUDAGraph

CAPACITY = 1 << 16
"""Blocks at a time: 16 million weights, about 1 GiB with all that is computed of them, a type."""


def _q4_k(weights: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    head, codes, odd = quantize_affine(weights, "Q4_K", 15.0)
    return torch.cat([head, pack_low(codes)], dim=1), odd


def _q5_k(weights: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    head, codes, odd = quantize_affine(weights, "Q5_K", 31.0)
    return torch.cat([head, pack_fifth(codes), pack_low(codes)], dim=1), odd


QUANTIZERS: Mapping[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = MappingProxyType(
    {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": quantize_q6_k}
)
"""Blocks [n, 256] to bytes [n, bytes of a block] and the odd ones [n], by storage type."""


class TorchDevice:
    """A `BlockDevice`.

    Args:
        device: torch's name of it: `cuda`, or `cpu` for tests.
        capacity: Blocks.

    Raises:
        DeviceError: torch cannot use it.
    """

    types = frozenset(QUANTIZERS)

    def __init__(self, device: str = "cuda", capacity: int = CAPACITY) -> None:
        import torch

        self.capacity = capacity
        self.device = torch.device(device)
        self.name = device
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise DeviceError(
                "torch finds no CUDA device",
                found=f"torch {torch.__version__}",
                hint="install torch with CUDA, or use `device` wgpu or cpu",
            )
        with device_errors(f"opening {device}", RuntimeError):
            if self.device.type == "cuda":
                self.name = torch.cuda.get_device_name(self.device)
            self._weights = torch.zeros((capacity, BLOCK), dtype=torch.float32, device=self.device)
        self._recorded: dict[str, tuple[CUDAGraph, Tensor, Tensor]] = {}

    def encode(self, dtype: str, parts: Sequence[Weights]) -> tuple[Bytes, Flags]:
        """As `BlockDevice.encode`."""
        import torch

        with device_errors(f"encoding {dtype} on {self.name}", RuntimeError), torch.no_grad():
            self.upload(parts)
            blocks, odd = self.run(dtype, sum(map(len, parts)))
            return blocks.cpu().numpy(), odd.cpu().numpy()

    def upload(self, parts: Sequence[Weights]) -> None:
        """Put blocks where `run` takes them, as float32."""
        import torch

        place = 0
        for part in parts:
            here = torch.from_numpy(np.require(part, requirements=["C", "W"]))
            if part.dtype == np.uint16:
                here = here.view(torch.bfloat16)
            # Moved before it is widened: copying into another type would widen it on the CPU.
            self._weights[place : place + len(part)] = here.to(self.device)
            place += len(part)

    def run(self, dtype: str, count: int) -> tuple[Tensor, Tensor]:
        """Encode the first `count` blocks that were uploaded; valid until the next run."""
        if self.device.type != "cuda":
            return QUANTIZERS[dtype](self._weights[:count])
        if dtype not in self._recorded:
            self._recorded[dtype] = self._record(dtype)
        graph, blocks, odd = self._recorded[dtype]
        graph.replay()
        return blocks[:count], odd[:count]

    def _record(self, dtype: str) -> tuple[CUDAGraph, Tensor, Tensor]:
        """All launches for a full buffer, which then are launched as one."""
        import torch

        QUANTIZERS[dtype](self._weights)  # loads the kernels, which a recording must not
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            blocks, odd = QUANTIZERS[dtype](self._weights)
        return graph, blocks, odd

    def close(self) -> None:
        """Give the device's memory back; it must not be used afterwards."""
        import torch

        self._recorded.clear()
        del self._weights
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
