"""The limit on torch's threads: how many a product gets, and that the caller's number returns."""

from __future__ import annotations

import pytest
import torch
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.reference.threads import THREAD_MACS, limited_threads, threads_for
from support.packages import llama_manifest, write_random_package


@pytest.mark.parametrize(
    ("macs", "available", "expected"),
    [
        (0, 8, 1),
        (THREAD_MACS - 1, 8, 1),
        (3 * THREAD_MACS, 8, 3),
        (100 * THREAD_MACS, 8, 8),
        (100 * THREAD_MACS, 1, 1),
    ],
)
def test_a_product_gets_threads_in_proportion_to_its_multiplications(macs, available, expected):
    assert threads_for(macs, available) == expected


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_a_small_model_decodes_in_one_thread_and_the_callers_number_is_restored(tmp_path, rng):
    used = []
    package = write_random_package(tmp_path, llama_manifest("F16"), rng)
    backend = CpuBackend(
        package, context=16, observe=lambda *_: used.append(torch.get_num_threads())
    )
    backend.logits([1], 0)
    assert set(used) == {1}
    assert torch.get_num_threads() == 3


def fail_in_one_thread() -> None:
    with limited_threads(1):
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError


@pytest.mark.usefixtures("three_threads")
def test_large_products_get_all_threads_and_an_error_restores_the_number():
    with pytest.raises(ZeroDivisionError):
        fail_in_one_thread()
    with limited_threads(9 * THREAD_MACS):
        assert torch.get_num_threads() == 3
    with limited_threads(2 * THREAD_MACS):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 3
