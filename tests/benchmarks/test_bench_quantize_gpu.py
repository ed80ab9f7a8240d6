"""`bench_quantize_gpu.py` counts blocks that differ from the CPU's, and its digest sees changes."""

from __future__ import annotations

import bench_quantize_gpu
import numpy as np
from rdrr_converter.devices.torch_device import TorchDevice


class WrongDevice(TorchDevice):
    """A device that flips one bit of one block."""

    def encode(self, dtype, parts):
        blocks, flagged = super().encode(dtype, parts)
        blocks[3, 20] ^= 1
        return blocks, flagged


def test_blocks_that_differ_are_counted(rng):
    weights = rng.standard_normal((8, 256), np.float32)
    right = bench_quantize_gpu.compare(TorchDevice("cpu", 8), "Q6_K", weights, 1)
    assert right["different"] == right["flagged"] == 0
    assert all(rate > 0 for rate in right["rates"].values())
    wrong = bench_quantize_gpu.compare(WrongDevice("cpu", 8), "Q6_K", weights, 1)
    assert wrong["different"] == 2  # once from float32, once from bfloat16


def test_a_digest_depends_on_all_files_and_their_names(tmp_path):
    digests = []
    for names in (("a", "b"), ("a", "c"), ("a", "b")):
        folder = tmp_path / str(len(digests))
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(np.arange(9).tobytes())
        digests.append(bench_quantize_gpu.digest(folder))
    assert digests[0] == digests[2] != digests[1]
