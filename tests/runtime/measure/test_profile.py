"""Timestamps are converted or refused, and the bytes that a dispatch must move are counted."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_device import timestamps
from rdrr_device.device import Device
from rdrr_device.timestamps import Timer
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import DeviceError, UsageError
from rdrr_format.layouts import Layout
from rdrr_manifests.graph import CacheShape
from rdrr_runtime.compile.choice.hints import Policy, resolve
from rdrr_runtime.compile.pass_spec import PREFILL
from rdrr_runtime.exec.plan import dry_run_plan
from rdrr_runtime.exec.traffic import traffic
from rdrr_runtime.measure.profile import copy_bandwidth, profile
from rdrr_runtime.phases.attention.attention import attention
from rdrr_runtime.phases.attention.spec import AttentionSpec
from rdrr_runtime.phases.cache.kv_cache import KvSpec, LayerCache
from rdrr_runtime.phases.cache.kv_store import kv_store
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.products.linear import linear
from rdrr_runtime.phases.rows.copy import copy
from rdrr_runtime.phases.rows.embed import embed
from rdrr_runtime.phases.weights.packing import upload_weight
from support.gpu import normal, random_tensor
from support.packages import SMALL, llama_manifest, write_random_package


@pytest.fixture
def copies(bench, rng):
    x = bench.upload(normal(rng, 4096))
    (phase,) = copy(x, bench.poisoned(4096), label="copy")
    return phase


def _ticks(monkeypatch, *ticks: tuple[int, int]) -> None:
    raw = np.array(ticks, np.uint64).reshape(-1).view(np.uint8)
    monkeypatch.setattr(Device, "read", lambda *_: raw)


def test_a_copy_copies_and_takes_time(device, copies):
    bound = device.bind(as_dispatch(copies))
    timed = Timer(device).run([[bound], [bound]], 1)
    assert timed.encoding < timed.submitted < timed.seen
    assert (timed.seconds > 0).all()
    assert timed.gpu[1, 0] >= timed.gpu[0, 1]
    assert timed.seconds.sum() < timed.seen - timed.encoding
    x, y = (device.read(slice_).tobytes() for slice_ in copies.slices)
    assert x == y


def test_all_passes_are_timed_even_if_they_exceed_a_query_set(device, copies, monkeypatch):
    monkeypatch.setattr(timestamps, "QUERIES", 64)  # 512 bytes, so resolving stays aligned
    timed = Timer(device).run([[device.bind(as_dispatch(copies))]] * 70, 1)
    assert len(timed.seconds) == 70
    assert (timed.seconds > 0).all()
    assert (np.diff(timed.gpu.reshape(-1)) >= 0).all()


def test_ticks_are_converted_to_seconds_by_the_adapters_period(device, copies, monkeypatch):
    monkeypatch.setattr(Device, "timestamp_period", 2.5)
    start = 1 << 60  # too large for float64 to resolve single ticks
    _ticks(monkeypatch, (start, start + 40), (start + 41, start + 42))
    bound = device.bind(as_dispatch(copies))
    timed = Timer(device).run([[bound], [bound]], 1)
    assert timed.seconds.tolist() == pytest.approx([1e-7, 2.5e-9])
    assert timed.gpu[1, 0] == pytest.approx(102.5e-9)


@pytest.mark.parametrize(
    ("ticks", "said"), [((7, 7), "no time at all"), ((7, 6), "backwards"), ((0, 0), "no time")]
)
def test_useless_timestamps_are_refused(device, copies, monkeypatch, ticks, said):
    _ticks(monkeypatch, ticks)
    with pytest.raises(DeviceError, match=said):
        Timer(device).run([[device.bind(as_dispatch(copies))]], 1)


def test_an_adapter_without_timestamps_is_refused(plain_device):
    with pytest.raises(DeviceError, match="no timestamp queries"):
        Timer(plain_device)


def test_the_copy_bandwidth_counts_reads_and_writes(device, monkeypatch):
    spans = [(0, 10**6 * (1 + index)) for index in range(9)]
    real = Timer(device)
    _ticks(monkeypatch, *spans)
    bandwidth, size = copy_bandwidth(device, real)
    assert bandwidth == pytest.approx(size / 5e-3 / device.timestamp_period)


def test_a_kernel_without_measurable_time_is_an_error(device, tmp_path, rng, monkeypatch):
    monkeypatch.setattr("rdrr_runtime.measure.profile.SOFTWARE_COPY_BYTES", 1 << 20)
    package = write_random_package(tmp_path / "package", llama_manifest(**SMALL), rng)
    with pytest.raises(UsageError, match="do not fit"):
        profile(package, device, Policy(), context=8, prompt_tokens=8, tokens=1)
    in_seconds = Timer._in_seconds

    def coarse(timer, ticks):
        seconds = in_seconds(timer, ticks)
        seconds[:1, 1] = seconds[:1, 0]  # the first dispatch of each run takes no time
        return seconds if len(seconds) > 1 else in_seconds(timer, ticks)

    monkeypatch.setattr(Timer, "_in_seconds", coarse)
    with pytest.raises(DeviceError, match=r"too coarse.*embed"):
        profile(package, device, Policy(), context=8, prompt_tokens=1, tokens=1)


@pytest.mark.thorough
@pytest.mark.parametrize("tokens", [20, 500], ids="{} tokens".format)
def test_a_dispatch_that_a_pass_leaves_out_is_not_listed(device, tmp_path, rng, tokens):
    package = write_random_package(tmp_path / "package", llama_manifest(), rng)
    policy = resolve({"run flag": {"attentionPrefill": "tiled_small"}})
    plan = dry_run_plan(package, device.capabilities, policy, 512, "f16")
    forms = [
        phase for phase in plan.lowered(PREFILL).phases if phase.name.startswith("attention_tiled")
    ]
    layers = package.manifest.architecture.num_layers
    assert len(forms) == 2 * layers  # the control: one for short passes, one for others
    profiled = profile(package, device, policy, context=512, prompt_tokens=tokens, tokens=1)
    listed = [
        kernel.ops for kernel in profiled.prefill.kernels if "attention_tiled" in kernel.kernel
    ]
    assert sum(listed) == layers


def test_a_product_moves_its_matrix_and_an_embedding_only_the_rows_it_looks_up(bench, rng):
    n, k = 96, 64
    ctx = bench.context(3, tokens=[0, 1, 2])
    raw, _ = random_tensor(rng, "F16", Layout.ROW, (n, k))
    weight = upload_weight(bench.arena, DTYPES["F16"], Layout.ROW, (n, k), raw, "w")
    x, y = bench.poisoned(3, k), bench.poisoned(3, n)
    (product,) = linear(ctx, weight, x, y, label="linear")
    assert traffic(product, 3, 0) == n * k * 2
    (lookup,) = embed(ctx, weight, x, label="embed")
    assert traffic(lookup, 3, 0) == 3 * k * 2


@pytest.mark.parametrize(("window", "seen"), [(0, 12), (4, 4 + 3 - 1)])
def test_attention_moves_the_slots_that_its_rows_attend_to(bench, rng, window, seen):
    spec = KvSpec.make(CacheShape(2, 32), 64, "f16")
    ctx = bench.context(3, base=9)
    held = LayerCache(*(bench.arena.empty("cache", spec.size) for _ in range(2)))
    q, out = bench.upload(normal(rng, 3, 4, 32)), bench.poisoned(3, 4, 32)
    what = AttentionSpec(heads=4, cache=spec, scale=1.0, window=window)
    (scan,) = attention(ctx, q, held, out, spec=what, label="attention")
    slot = 2 * 32 * 2
    assert traffic(scan, 3, 9) == 2 * seen * slot
    k, v = (bench.upload(normal(rng, 3, 2, 32)) for _ in range(2))
    (store,) = kv_store(ctx, k, v, held, cache=spec, label="store")
    assert traffic(store, 3, 9) == 2 * 3 * slot
