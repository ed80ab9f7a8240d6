"""Window passes over several tokens at given positions, on the GPU, compared with torch."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_device.dry_run import DryRunArena
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.compile.pass_spec import PREFILL, SMALL_WINDOW, WINDOW
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.products.linear import GEMV_ROWS
from rdrr_runtime.phases.products.matvec_rows_tuning import ROWS_AT_A_TIME
from rdrr_runtime.reference.backend import CpuBackend
from support.choices import assert_same_ids
from support.comparison import relative_error, rounding_backend
from support.packages import VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of
from support.wedlm_reference import picks

CLOSE, APART, ROUNDED_ALIKE = 1e-3, 1e-2, 2e-2
CONTEXT = 96


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    return write_random_package(folder, llama_manifest(layers=1), generator_of(request))


def test_rows_use_their_given_positions_and_attend_to_the_slots_before_theirs(
    backend, package, rng
):
    reference = CpuBackend(package, context=CONTEXT)
    prompt = rng.integers(0, VOCAB, 11).tolist()
    for runner in (backend, reference):
        runner.fill(prompt, 0)
    for rows, last_n in ((1, 1), (6, 2), (21, 21), (40, 37)):
        ids = rng.integers(0, VOCAB, rows).tolist()
        positions = (11 + rng.permutation(rows)).tolist()
        asked = {"last_n": last_n, "positions": positions}
        ours = backend.window_logits(ids, 11, **asked)
        assert ours.shape == (last_n, VOCAB)
        expected = reference.window_logits(ids, 11, **asked)
        assert relative_error(ours, expected) < CLOSE
        picked, entropy = backend.window_picks(ids, 11, **asked)
        assert np.allclose(entropy, picks(ours.astype(np.float64))[1], atol=1e-4)
        assert picked == ours.argmax(axis=1).tolist()
    in_order = backend.window_logits(ids, 11, last_n=last_n)
    assert relative_error(in_order, expected) > APART  # the control: positions matter


def test_a_window_in_sequence_order_equals_the_sequence(backend, package, rng):
    ids = rng.integers(0, VOCAB, 30).tolist()
    backend.fill(ids[:9], 0)
    ahead = backend.window_logits(ids[9:], 9, last_n=21)
    assert relative_error(ahead, backend.logits(ids, 0, all_rows=True)[9:]) < CLOSE
    after = backend.greedy([ids[-1]], 29, 3)  # continues from the cache that the window filled
    assert_same_ids(after, backend.greedy(ids, 0, 3), ids, package)


@pytest.mark.parametrize(("hint", "dtype"), [("fused_q4k", "Q4_K"), ("fused_q4k_int8", "Q6_K")])
def test_a_weight_is_read_once_for_as_many_rows_of_a_window_as_a_kernel_takes(
    device, tmp_path, rng, hint, dtype
):
    package = write_random_package(tmp_path, llama_manifest(dtype), rng)
    policy, fused = resolve({"run flag": {"q4kMatmul": hint}}), hint == "fused_q4k_int8"
    plan = Plan(package, DryRunArena(device.capabilities), policy, context=CONTEXT, kv_dtype="f16")
    for kind, most in ((SMALL_WINDOW, 8), (WINDOW, 32)):
        lowered = plan.lowered(kind)
        products = [
            phase
            for phase in (*lowered.body, *lowered.head)
            if phase.name.startswith(("gemv", "matmul", "matvec_rows"))
        ]
        assert len(products) == 2 * (4 if fused else 7) + 1
        for product in products:
            kernel = product.name.partition(".")[0]
            at_a_time = {"gemv_row": GEMV_ROWS, "matvec_rows": ROWS_AT_A_TIME}.get(kernel, most)
            assert product.work.count(most) in (
                product.work.count(1),
                max(1, most // at_a_time) * product.work.count(1),
            )
    prefill = [phase for phase in plan.lowered(PREFILL).body if "matmul" in phase.name]
    assert prefill[0].work.count(CONTEXT) != prefill[0].work.count(1)  # the control


@pytest.mark.thorough
@pytest.mark.parametrize(
    "count",
    [5, 21],
    ids=["few", "window"],
)
def test_a_window_in_int8_is_close_to_torch(device, tmp_path, rng, count):
    package = write_random_package(tmp_path, llama_manifest("Q4_K", embedding="Q8_0"), rng)
    policy = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}})
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, policy=policy)
    ids = rng.integers(0, VOCAB, 40).tolist()
    backend.fill(ids[: 40 - count], 0)
    logits = backend.window_logits(ids[40 - count :], 40 - count, last_n=3)
    expected = rounding_backend(package, CONTEXT).logits(ids, 0, all_rows=True)[-3:]
    assert relative_error(logits, expected) < ROUNDED_ALIKE
    exact = CpuBackend(package, context=CONTEXT).logits(ids, 0, all_rows=True)[-3:]
    assert relative_error(logits, exact) > 1e-5  # so large only with int8
    backend.close()


@pytest.mark.parametrize("hint", ["fused_q4k_int8", "fused_q4k"])
def test_partial_results_of_attention_are_combined_by_the_product_after_it_in_int8(
    device, tmp_path, rng, hint
):
    """Other products read the result of a phase that combines them."""
    package = write_random_package(tmp_path, llama_manifest("Q4_K"), rng)
    policy = resolve({"run flag": {"q4kMatmul": hint}})
    plan = Plan(package, DryRunArena(device.capabilities), policy, context=CONTEXT, kv_dtype="f16")
    for kind in (SMALL_WINDOW, WINDOW):
        names = [phase.name for phase in plan.lowered(kind).body]
        after = {names[at + 1] for at, name in enumerate(names) if ".split." in name}
        in_int8 = hint == "fused_q4k_int8"
        assert after == {"quantize_small_batch.combine" if in_int8 else "attention_combine"}
    assert not any(".split." in phase.name for phase in plan.lowered(PREFILL).body)  # the control


def test_picks_take_one_readback_of_8_bytes_per_row(backend, rng):
    ids = rng.integers(0, VOCAB, 24).tolist()
    backend.window_picks(ids, 0, last_n=10)
    before = backend.device.counters.copy()
    backend.window_picks(ids, 0, last_n=10)
    work = backend.device.counters.since(before)
    assert (work.bytes_read, work.maps) == (8 * 10, 1)
    assert (work.buffer_creates, work.bind_group_creates, work.pipeline_creates) == (0, 0, 0)
