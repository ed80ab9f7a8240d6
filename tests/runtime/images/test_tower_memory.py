"""The memory of a vision tower is known before it is taken."""

from __future__ import annotations

from contextlib import closing

import numpy as np
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.gpu_tower import GpuTower, tower_footprint
from rdrr_runtime.images.patches import ImagePatches
from support.packages import write_random_package
from support.towers import VISION, manifest_with_tower

CONTEXT = 64


def test_a_tower_takes_the_memory_that_its_dry_run_counts(tmp_path, rng, device):
    package = write_random_package(tmp_path, manifest_with_tower(), rng)
    need = tower_footprint(package, device.capabilities, Policy(), CONTEXT)
    largest = rng.standard_normal((64, VISION.patch_inputs)).astype(np.float32)
    with closing(GpuTower(package, device)) as tower:
        # The device makes what it keeps, such as the memory through which it reads results back.
        tower.encode(ImagePatches(largest, (1, 8, 8)))
    before = device.memory.live
    with closing(GpuTower(package, device)) as tower:
        loaded = device.memory.live - before
        tower.encode(ImagePatches(largest, (1, 8, 8)))
        taken = device.memory.live - before
    # Buffers of a device are rounded up.
    rounding = 16 * 200
    assert need.weights <= loaded <= need.weights + rounding
    assert need.total <= taken <= need.total + rounding
    assert device.memory.live <= before
