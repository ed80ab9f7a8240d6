"""Modes of submission: exact counts of what each asks of the device, and the same ids in all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from rdrr_device import pass_timer, submission
from rdrr_device.kernels import Grid, dispatch
from rdrr_device.op_calls import uniform_content
from rdrr_device.pass_timer import PassTimer, timed
from rdrr_device.submission import OURS, Submission
from rdrr_format.errors import DeviceError
from rdrr_runtime.backend import Backend
from rdrr_runtime.compile.pass_spec import DECODE, PREFILL
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.greedy import Greedy
from rdrr_runtime.decode.greedy_on_host import GreedyOnHost
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.elementwise import scale
from rdrr_runtime.phases.shaders import kernel
from support.comparison import relative_error
from support.packages import CONTEXT, VOCAB, llama_manifest, write_random_package

PER_OP = Submission(submit_per_op=True)
REMADE = Submission(uniforms="fresh", fresh_bind_groups=True, fresh_staging=True)
FRESH = Submission(submit_per_op=True, uniforms="fresh", fresh_bind_groups=True, fresh_staging=True)
CACHED = Submission(
    submit_per_op=True, uniforms="cached", fresh_bind_groups=True, fresh_staging=True
)
ALL = {"ours": OURS, "per op": PER_OP, "remade": REMADE, "fresh": FRESH, "cached": CACHED}


@pytest.fixture(scope="module")
def backend(device, tmp_path_factory) -> Iterator[GpuBackend]:
    folder = tmp_path_factory.mktemp("submission")
    package = write_random_package(folder, llama_manifest(), np.random.default_rng())
    made = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    made.greedy(made.greedy([1, 2], 0, 1), 2, 1)  # all passes are built
    yield made
    made.close()


def prompt(rng, size: int) -> list[int]:
    return rng.integers(0, VOCAB, size).tolist()


def decode_dispatches(backend: GpuBackend) -> list:
    return list(backend._program.get(DECODE).to_token)


def generated(
    backend: Backend, strategy, ids: list[int], max_tokens: int, stops: frozenset[int]
) -> tuple[list[int], Counts]:
    counts = Counts()
    runs = strategy.run(backend, Job(ids, 0, max_tokens, stops), counts)
    return [one for run in runs for one in run], counts


@pytest.fixture(params=["native", "public"])
def either_api(request, backend, monkeypatch) -> None:
    """Modes recorded beneath wgpu-py, and through it where its internals are other ones."""
    monkeypatch.setattr(backend.device, "_submitters", {})
    if request.param == "public":
        monkeypatch.setattr(backend.device.handle, "native", None)
    else:
        assert backend.device.handle.native is not None


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.usefixtures("either_api")
def test_each_mode_does_exactly_the_work_that_it_says(backend, rng, name, interval):
    how, ids = ALL[name], prompt(rng, 5)
    bound = decode_dispatches(backend)
    with backend.device.submitting(how):
        last = backend.greedy(backend.greedy(ids, 0, 1), 5, 1)
        before = backend.device.counters.copy()
        backend.greedy(last, 6, interval)
        work = backend.device.counters.since(before)
    ops = len(bound) * interval
    assert work.dispatches == ops
    assert work.submits == (ops if how.submit_per_op else interval) + 1
    assert work.maps == 1
    assert work.bytes_read == 4 * interval
    assert work.bind_group_creates == (ops if how.fresh_bind_groups else 0)
    assert work.uniform_creates == (ops if how.uniforms == "fresh" else 0)
    assert work.uniform_hits == (ops if how.uniforms == "cached" else 0)
    assert work.buffer_creates == work.uniform_creates + how.fresh_staging
    written = interval * sum(uniform_content(one, 1).nbytes for one in bound)
    assert work.bytes_written == (written if how.uniforms == "fresh" else 0)
    assert work.pipeline_creates == 0


def test_the_beginning_of_a_long_prompt_is_submitted_ahead(backend, rng, monkeypatch):
    monkeypatch.setattr(submission, "MANY_ROWS", 4)
    ids = prompt(rng, 5)
    device = backend.device
    with device.submitting(Submission()):
        whole = backend.logits(ids, 0)
    with device.submitting(Submission(ahead=3)):
        before = device.counters.copy()
        parted = backend.logits(ids, 0)
        prefill = device.counters.since(before)
        backend.logits(ids[:3], 5)
        shorter = device.counters.since(before).since(prefill)
    assert (parted == whole).all()
    assert (prefill.submits, shorter.submits) == (2 + 1, 1 + 1)  # and one that reads the logits
    assert prefill.dispatches == len(backend._program.get(PREFILL).to_logits)


def test_a_cache_makes_one_uniform_for_each_content_and_keeps_it(backend, rng):
    contents = {uniform_content(one, 1).tobytes() for one in decode_dispatches(backend)}
    assert len(contents) < len(decode_dispatches(backend))  # layers are alike
    first = backend.greedy(prompt(rng, 5), 0, 1)
    new = Submission(uniforms="cached")  # not used before on this device
    for created in (len(contents), 0):
        with backend.device.submitting(new):
            before = backend.device.counters.copy()
            backend.greedy(first, 5, 3)
            work = backend.device.counters.since(before)
        assert work.uniform_creates == created
        assert work.uniform_hits == work.dispatches - created


def test_both_apis_compute_the_same_in_every_mode(backend, rng, monkeypatch):
    ids = prompt(rng, 5)
    plain = backend.logits(ids, 0)
    assert not np.array_equal(plain, backend.logits(ids[:-1], 0))  # the control
    for native in (backend.device.handle.native, None):
        monkeypatch.setattr(backend.device.handle, "native", native)
        monkeypatch.setattr(backend.device, "_submitters", {})
        for how in ALL.values():
            with backend.device.submitting(how):
                assert np.array_equal(backend.logits(ids, 0), plain)


@pytest.mark.parametrize("name", ["ours", "per op", "fresh"])
def test_what_does_not_validate_is_an_error_in_every_mode(bench, name):
    x = bench.poisoned(64)
    context = bench.context(1)
    what = kernel("copy_row", constants={"WIDTH": 64})
    made = dispatch(what, {"current": context.state.step, "x": x, "y": x}, Grid(), "t")
    right = scale(context, x, width=64, factor=2.0, label="right")
    with bench.device.submitting(ALL[name]):
        with pytest.raises(DeviceError, match="conflicting usages"):
            bench.device.submit([bench.device.bind(made)], 1)
        bench.device.write(x, np.ones(64, np.float32))
        bench.run(right, 1)  # nothing of the failure is left
    assert np.array_equal(bench.download(x, 64), np.full(64, 2.0, np.float32))


def test_a_mode_ends_with_its_block_also_after_an_error(backend, rng):
    def fail() -> None:
        with backend.device.submitting(FRESH):
            assert backend.device.submission is FRESH
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    before = backend.device.counters.copy()
    backend.greedy(prompt(rng, 1), 0, 2)
    assert backend.device.submission is OURS
    assert backend.device.counters.since(before).bind_group_creates == 0


class Ending:
    """A backend that says `EOS` as the id of one slot, whatever it computes there."""

    EOS = 0

    def __init__(self, backend: GpuBackend, slot: int) -> None:
        self.info = backend.info
        self._backend = backend
        self._slot = slot

    def logits(self, ids, base, *, all_rows=False):
        found = self._backend.logits(ids, base, all_rows=all_rows)
        if base + len(ids) == self._slot:
            found[0, self.EOS] = np.inf
        return found

    def greedy(self, ids, base, count):
        found = self._backend.greedy(ids, base, count)
        start = base + len(ids)
        return [self.EOS if start + i == self._slot else one for i, one in enumerate(found)]

    def close(self) -> None:
        """The backend is another's."""


def endless_prompt(backend: GpuBackend, rng, size: int) -> list[int]:
    """A prompt that random weights do not continue with the id that is to be the end."""
    for _ in range(100):
        ids = prompt(rng, size)
        if Ending.EOS not in backend.greedy(ids, 0, 20):
            return ids
    raise AssertionError("every text ends")


def varied_prompt(backend: GpuBackend, rng) -> list[int]:
    """The prompt, of several, that random weights continue with the most different ids."""
    prompts = [endless_prompt(backend, rng, 6) for _ in range(6)]
    return max(prompts, key=lambda ids: len(set(backend.greedy(ids, 0, 10))))


def test_ids_are_the_same_in_every_mode_with_an_end_at_every_residue(backend, rng):
    ids = varied_prompt(backend, rng)
    plain, _ = generated(backend, GreedyOnHost(), ids, 10, frozenset())
    stops = frozenset({Ending.EOS})
    assert generated(Ending(backend, len(ids) + 5), GreedyOnHost(), ids, 10, stops)[0] == [
        *plain[:5],
        Ending.EOS,
    ]
    for x, end in [(each, at) for each in (1, 2, 4, 8) for at in range(1, each + 1)]:
        found, counts = generated(Ending(backend, len(ids) + end), Greedy(x), ids, 9, stops)
        assert found == [*plain[:end], Ending.EOS]
        assert counts.wasted == -end % x
        assert counts.forwards == end + counts.wasted
    for how, end in ((PER_OP, 2), (FRESH, 3), (CACHED, 5)):
        with backend.device.submitting(how):
            found, _ = generated(Ending(backend, len(ids) + end), Greedy(4), ids, 9, stops)
            assert found == [*plain[:end], Ending.EOS]


@pytest.mark.parametrize("max_tokens", [5, 6, 7, 8])
def test_nothing_is_wasted_when_the_text_is_long_enough(backend, rng, max_tokens):
    ids = prompt(rng, 6)
    runs = [generated(backend, Greedy(x), ids, max_tokens, frozenset()) for x in (1, 4)]
    assert runs[0][0] == runs[1][0]
    assert [counts.wasted for _, counts in runs] == [0, 0]
    assert [counts.forwards for _, counts in runs] == [max_tokens - 1] * 2


@pytest.mark.parametrize("name", ["ours", "cached"])
def test_after_an_early_end_the_next_turn_equals_a_fresh_run(backend, rng, name):
    ids, turn = endless_prompt(backend, rng, 7), prompt(rng, 4)
    ending = Ending(backend, len(ids) + 3)
    with backend.device.submitting(ALL[name]):
        delivered, counts = generated(ending, Greedy(8), ids, 17, frozenset({Ending.EOS}))
        assert (len(delivered), counts.wasted) == (4, 5)
        text = [*ids, *delivered]
        # The last id has not been run: it begins the next turn.
        second = backend.logits([delivered[-1], *turn], len(text) - 1)
        fresh = backend.logits([*text, *turn], 0)
        other = backend.logits([*text[:-1], *turn], 0)
    assert relative_error(second, fresh) < 1e-5
    assert relative_error(other, fresh) > 1e-3  # the control


def test_a_timer_measures_every_pass_and_only_while_it_is_on(backend, rng):
    device = backend.device
    first = backend.greedy(prompt(rng, 5), 0, 1)
    with timed(device) as timer:
        assert timer.take() == 0.0
        backend.greedy(first, 5, 2)
        whole = timer.take()
        with device.submitting(Submission(pass_per_op=True)):
            before = device.counters.copy()
            backend.greedy(first, 5, 2)
            assert device.counters.since(before).submits == 3
        assert timer.take() > 0
        assert whole > 0
    assert device.timer is None


def test_a_timer_with_little_room_collects_between_submissions_only(backend, rng, monkeypatch):
    device, first = backend.device, backend.greedy(prompt(rng, 5), 0, 1)
    ops = len(decode_dispatches(backend))
    collected = []
    monkeypatch.setattr(pass_timer, "PASSES", ops + 1)
    collect = PassTimer._collect
    monkeypatch.setattr(
        PassTimer, "_collect", lambda self: (collected.append(self._pending), collect(self))
    )
    with device.submitting(Submission(pass_per_op=True)), timed(device) as timer:
        backend.greedy(first, 5, 3)
        assert timer.take() > 0
    assert collected == [ops, ops, ops]  # whole tokens, though there was room for one pass more
    monkeypatch.setattr(pass_timer, "PASSES", ops - 1)
    with (
        device.submitting(Submission(pass_per_op=True)),
        timed(device),
        pytest.raises(DeviceError, match="too many passes"),
    ):
        backend.greedy(first, 5, 1)


def test_memory_is_that_of_the_buffers_and_its_peak_stays(device):
    live = device.memory.live
    buffer = device.create_buffer("test", 4096)
    assert device.memory.live == live + 4096
    device.free_buffer(buffer)
    device.free_buffer(buffer)
    assert device.memory.live == live
    assert device.memory.peak >= live + 4096
