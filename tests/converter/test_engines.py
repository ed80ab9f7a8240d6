"""All engines keep the order and give the same bytes, with few items in flight at a time."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.engines import open_engine
from rdrr_converter.sources import open_source
from rdrr_format.errors import ConversionError, SourceError, UsageError
from support.deadlines import HANGS, until
from support.safetensor_files import llama_tensors, write_llama


@pytest.fixture
def folder(tmp_path, rng):
    return write_llama(tmp_path / "source", llama_tensors(rng))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refuse(number):
    if number == 3:
        raise SourceError("cannot be read", where="file", expected="three", found=number)
    return number


def test_threads_keep_the_order_and_run_a_few_items_ahead(rng):
    delays = rng.uniform(0, 0.01, 30).tolist()
    taken, begun, most = 0, 0, 0
    guard = threading.Lock()
    several = threading.Barrier(3)

    def work(delay):
        nonlocal begun, most
        with guard:
            begun += 1
            most = max(most, begun - taken)
        several.wait(HANGS)  # the next two items are begun before this one ends
        time.sleep(delay)
        return -delay

    results = []
    with open_engine("threads", 3) as engine:
        for pair in engine.map(work, iter(delays)):
            results.append(pair)
            taken += 1
    assert results == [(delay, -delay) for delay in delays]
    assert 1 < most <= 2 * 3


def test_an_error_is_raised_in_the_order_of_items_and_pending_items_are_dropped():
    results, begun = [], []

    def work(number):
        begun.append(number)
        return refuse(number)

    with open_engine("threads", 2) as engine, pytest.raises(SourceError, match="cannot be read"):
        results.extend(result for _, result in engine.map(work, range(1000)))
    assert results == [0, 1, 2]
    assert len(begun) <= 3 + 2 * 2


@pytest.mark.thorough
def test_ray_workers_give_the_same_bytes_and_the_same_errors(folder, tmp_path, monkeypatch):
    """One cluster of two workers serves the whole test, because starting one takes seconds."""
    ray = pytest.importorskip("ray")
    convert(folder, tmp_path / "threads", shard_size=2**16)
    options = {"q4k_layout": "column", "fuse_gate_up": True}
    convert(folder, tmp_path / "threads-column", **options)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        convert(folder, tmp_path / "ray", shard_size=2**16, engine="ray")
        convert(folder, tmp_path / "ray-column", engine="ray", **options)
        with open_engine("ray", 1) as engine:
            pids = {pid for _, pid in engine.map(process_id, [tmp_path / "pids"] * 2)}
            with pytest.raises(SourceError) as caught:
                list(engine.map(refuse, range(1000)))
        assert ray.is_initialized()  # a cluster that was running before is not shut down
    finally:
        ray.shutdown()
    assert contents(tmp_path / "ray") == contents(tmp_path / "threads")
    assert contents(tmp_path / "ray-column") == contents(tmp_path / "threads-column")
    assert os.getpid() not in pids
    assert len(pids) == 2
    assert caught.value.line() == "file: cannot be read (expected three, found 3)"


def process_id(folder):
    """Return the id of this process once two processes are at work, however late one starts."""
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    until(lambda: len(list(folder.iterdir())) == 2, "one process does all the work")
    return os.getpid()


def test_a_missing_ray_is_an_error_that_names_the_extra(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install .ray>="):
        convert(folder, tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


def test_an_unreachable_cluster_is_one_clear_error(folder, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ConversionError, match="cannot be reached"):
        convert(folder, tmp_path / "out", engine="ray", ray_address="127.0.0.1:1")


@pytest.mark.parametrize(
    "options", [{"engine": "abacus"}, {"engine": "threads", "ray_address": "127.0.0.1:6379"}]
)
def test_invalid_engine_options_are_usage_errors(folder, tmp_path, options):
    with pytest.raises(UsageError):
        convert(folder, tmp_path / "out", **options)


@pytest.mark.parametrize("kind", ["safetensors", "pytorch"])
def test_another_process_receives_the_location_of_a_tensor_and_not_its_values(folder, rng, kind):
    if kind == "pytorch":
        import torch

        weights = folder / "model.safetensors"
        tensors = open_source(folder).tensors
        torch.save(
            {
                name: torch.from_numpy(one.read()).reshape(one.shape)
                for name, one in tensors.items()
            },
            folder / "pytorch_model.bin",
        )
        weights.unlink()
    for tensor in open_source(folder).tensors.values():
        sent = pickle.dumps(tensor)
        assert len(sent) < 2000
        rows = slice(0, int(rng.integers(1, tensor.rows + 1)))
        assert np.array_equal(pickle.loads(sent).read(rows=rows), tensor.read(rows=rows))
