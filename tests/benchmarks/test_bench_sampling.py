"""`bench_sampling.py` on a small vocabulary."""

from __future__ import annotations

import bench_sampling
import pytest
from rdrr_device.device import open_device
from rdrr_runtime.sampling.sampler import Sampler


@pytest.fixture
def device():
    opened = open_device()
    yield opened
    opened.close()


def test_every_variant_is_checked_and_timed(device, monkeypatch):
    times = bench_sampling.measure(device, vocab=500, samples=2)
    variants = set(bench_sampling.VARIANTS)
    assert set(times) == {"argmax", *variants, *(f"host: {name}" for name in variants)}
    assert min(times.values()) > 0
    # The control: a host that samples other ids is noticed.
    monkeypatch.setattr(Sampler, "choose", lambda *_: 3)
    with pytest.raises(SystemExit, match="the GPU samples"):
        bench_sampling.measure(device, vocab=500, samples=2)
