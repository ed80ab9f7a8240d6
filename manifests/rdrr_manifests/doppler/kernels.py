"""The kernels of DOPPLER 0.5.1 that our execution graphs name, with their digests.

A digest is the SHA-256 of a kernel's WGSL and entry point, from DOPPLER's own table
(`src/config/kernels/kernel-ref-digests.js`). It says with which kernels a package was tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

VERSION = "0.5.1"
"""The version of `doppler-gpu` whose kernels these are."""


@dataclass(frozen=True)
class Kernel:
    """An entry of `execution.kernels`.

    Attributes:
        file: WGSL file of the kernel.
        digest: SHA-256 of the kernel, 64 hexadecimal digits.
        entry: Entry point.
        constants: Values of its override constants.
        has_cache: Whether it reads the key-value cache, which is then in f16.
    """

    file: str
    digest: str
    entry: str = "main"
    constants: Mapping[str, Any] = field(default_factory=dict)
    has_cache: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        entry: dict[str, Any] = {
            "kernel": self.file,
            "entry": self.entry,
            "digest": f"sha256:{self.digest}",
        }
        if self.constants:
            entry["constants"] = dict(self.constants)
        if self.has_cache:
            entry["precision"] = {"kvDtype": "f16"}
        return entry


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "embed": Kernel(
            "gather_f16.wgsl",
            "8995b4a790a1f3b89fbb801f89d595985eee46c9bfca4133f74396259083eda9",
        ),
        "rmsnorm": Kernel(
            "rmsnorm.wgsl",
            "284d3efb0ad0991fc57ece5f634cbc8a931fcab36f193b2b6832561d4cc79ef1",
        ),
        "rope": Kernel(
            "rope.wgsl",
            "b2da9d396668981dab9794c2973b668279f768994466b083d2105730555e1a5b",
        ),
        "attention_decode": Kernel(
            "attention_decode_online_f16kv.wgsl",
            "91808be35895e921c0fa43fc47bfe8cab69c437c388ab561f595d9dc983f66e1",
            has_cache=True,
        ),
        "attention_prefill": Kernel(
            "attention_streaming_f16kv.wgsl",
            "c3ec920699a81ee6df04a64eb0ea2477bec168ebb809af29f2d4b0924a4bdf8f",
            has_cache=True,
        ),
        "residual": Kernel(
            "residual.wgsl",
            "abd19bc08ad668a7cad562e2bc0a4be1aa8827ad4300d8d474b7fc2af4c27117",
        ),
        "silu": Kernel(
            "silu.wgsl",
            "d6b21e62031ac0d748617f7ebfb43834552a5b8f9590c18dc19cd0cd41a2fbca",
        ),
        "gelu": Kernel(
            "gelu.wgsl",
            "7f8900b69de5107e4cf424cac0d4de1539591ece34e977ff30f6f7364460ab34",
            constants={"HAS_GATE": True},
        ),
        "gemv": Kernel(
            "matmul_gemv_subgroup.wgsl",
            "2ea9aea659367210fbf61d922c0d4ee17cdac68ffb506b3bc5516e498071e011",
            entry="main_vec4",
        ),
        "matmul": Kernel(
            "matmul_f16w_f32a.wgsl",
            "027a8f1cd9713cbe0b0ada160bd175e0542bb90896ad85441b023522d9a1befc",
        ),
        "q4_gemv": Kernel(
            "fused_matmul_q4.wgsl",
            "02029c2254c8ddb4c2051c4322e6b11ddbcf555e27d233e7fe73277edfa0f3f7",
            entry="main_gemv",
        ),
        "q4_matmul": Kernel(
            "fused_matmul_q4_batched_multicol_shared.wgsl",
            "142817adcacb28750a92793996cd15c2d9fe13d03e0c2d0aadf3e674dc7a35d6",
        ),
        "head_gemv": Kernel(
            "matmul_gemv_subgroup.wgsl",
            "e41f94574d5ac54dd2710036da5d5acc643a483b79b2d74b86825efdaaa7438f",
            entry="main_multicol",
            constants={"MULTICOL_COLS_PER_WG": 8, "MULTICOL_THREADS_PER_COL": 32},
        ),
        "sample": Kernel(
            "sample.wgsl",
            "7ff3dd675b4737d920e0b3889e15c4fedde8410a353bbc6d4651db76ce69eb9b",
            entry="sample_single_pass",
        ),
    }
)
"""The kernels by the names that our graphs give them."""
