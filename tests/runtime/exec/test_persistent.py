"""Decode passes in one dispatch choose the same tokens as passes launched phase by phase."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from rdrr_device.capabilities import COHERENT_FEATURE
from rdrr_runtime.backend import Row
from rdrr_runtime.exec.persistent import limits, modules
from rdrr_runtime.exec.persistent.choice import Persistence
from rdrr_runtime.exec.persistent.handover import EMPTY, HEAD_WORDS
from rdrr_runtime.exec.persistent.modules import Modules
from rdrr_runtime.exec.persistent.occupancy import find_grid, unsupported
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.step import Step
from support.comparison import relative_error
from support.dawn_device import open_dawn_device, why_no_dawn
from support.masks import packed
from support.packages import VOCAB, llama_manifest, write_random_package

PROMPT = (5, 9, 1, 7, 20)
ONE = Persistence((Grid(128, 1),), "a test asks for it", polls=1000)
TOKENS = 12


def _backend(package, device, persistence=None, kv_dtype="f16"):
    return GpuBackend(
        package, context=64, device=device, persistence=persistence, kv_dtype=kv_dtype
    )


@pytest.fixture(scope="module")
def launched(package, device):
    """A backend that launches its passes phase by phase."""
    backend = _backend(package, device)
    yield backend
    backend.close()


def _decision(backend):
    return [decision.kernel for decision in backend.info.decisions if decision.op == "decode pass"]


def _ids(backend):
    first = backend.greedy(PROMPT, 0, 1)
    return first + backend.greedy(first, len(PROMPT), TOKENS)


def _ids_of(package, device, persistence=None):
    with closing(_backend(package, device, persistence)) as backend:
        return _ids(backend), _decision(backend)


@pytest.mark.parametrize(
    ("dtype", "layout", "layers"),
    [
        ("Q4_K", "row", 1),
        pytest.param("Q4_K", "row", 2, marks=pytest.mark.thorough),
        pytest.param("F16", "row", 2, marks=pytest.mark.thorough),
        pytest.param("Q4_K", "column", 2, marks=pytest.mark.thorough),
    ],
)
def test_one_workgroup_chooses_the_tokens_of_the_dispatches(
    tmp_path, device, dtype, layout, layers, rng
):
    manifest = llama_manifest(dtype, layout, layers=layers)
    package = write_random_package(tmp_path, manifest, rng)
    expected, _ = _ids_of(package, device)
    ids, decision = _ids_of(package, device, ONE)
    assert decision == ["one dispatch, 1 workgroups of 128 threads"]
    assert ids == expected


@pytest.mark.thorough  # Mesa compiles Tint's form of the module for 40 s
@pytest.mark.skipif(why_no_dawn() is not None, reason="Dawn is not there")
@pytest.mark.parametrize(("dtype", "layout"), [("Q4_K", "row"), ("Q4_K", "column"), ("F16", "row")])
def test_one_dispatch_binds_no_written_buffer_twice_where_that_is_not_allowed(
    tmp_path, rng, dtype, layout
):
    """Dawn refuses a dispatch that does."""
    package = write_random_package(tmp_path, llama_manifest(dtype, layout, layers=1), rng)
    with closing(open_dawn_device()) as dawn:
        assert not dawn.info.aliased_writes
        expected, _ = _ids_of(package, dawn)
        ids, decision = _ids_of(package, dawn, ONE)
    assert decision == ["one dispatch, 1 workgroups of 128 threads"]
    assert ids == expected


def test_a_token_takes_one_dispatch(package, device):
    with closing(_backend(package, device, ONE)) as backend:
        first = backend.greedy(PROMPT, 0, 1)
        before = device.counters.copy()
        backend.greedy(first, len(PROMPT), TOKENS)
        assert device.counters.since(before).dispatches == TOKENS


def test_the_pass_of_a_model_is_linked_once(package, device, monkeypatch):
    linked, link = [], modules.link
    monkeypatch.setattr(modules, "link", lambda *a, **b: linked.append(len(a[0])) or link(*a, **b))
    with closing(_backend(package, device, ONE)) as backend:
        _ids(backend)
    assert len(linked) == 1  # for the trial, and then for the passes


SAMPLED = {
    "temperature": SamplingParams(temperature=4.0, seed=3),
    "top-k and top-p": SamplingParams(temperature=4.0, top_k=40, top_p=0.9, seed=3),
    "penalties": SamplingParams(
        temperature=4.0, frequency_penalty=0.5, presence_penalty=0.5, seed=3
    ),
}


def _sampled(backend, options, count=TOKENS, logprobs=None):
    backend.begin(options, PROMPT, logprobs=logprobs)
    first = backend.sample(PROMPT, 0, 1)
    return first + backend.sample(first, len(PROMPT), count)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=() if name == "penalties" else pytest.mark.thorough)
        for name, options in SAMPLED.items()
    ],
)
def test_a_sampled_token_takes_one_dispatch_and_those_of_the_sampler(package, device, options):
    counts, sampled = [], []
    for persistence in (None, ONE):
        with closing(_backend(package, device, persistence)) as backend:
            sampled.append(_sampled(backend, options))
            before = device.counters.copy()
            backend.sample(sampled[-1][-1:], len(PROMPT) + TOKENS, 4)
            counts.append(device.counters.since(before).dispatches / 4)
            decode = backend._plan.decode.lowered
    assert sampled[0] == sampled[1]
    assert (
        len(set(sampled[0])) > 3
    )  # so that a token that does not follow the one before is noticed
    assert counts[0] - counts[1] == len(decode.body) + len(decode.head) - 1


@pytest.mark.cover
@pytest.mark.parametrize("logprobs", [None, 3])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=pytest.mark.thorough if name == "temperature" else ())
        for name, options in SAMPLED.items()
    ],
)
def test_sampling_behind_a_pass_that_gave_up_is_repeated(
    launched, package, device, options, logprobs, caplog
):
    """The sampler keeps counts of tokens and records, which a pass that gave up must not change."""
    with closing(_backend(package, device, ONE)) as backend:
        with caplog.at_level(logging.WARNING):
            expected = _sampled(launched, options, logprobs=logprobs)
            backend.begin(options, PROMPT, logprobs=logprobs)
            sampled = backend.sample(PROMPT, 0, 1)
            sampled += backend.sample(sampled, len(PROMPT), 3)
            device.write(backend._executor.gave_up, np.ones(1, np.uint32))
            sampled += backend.sample(sampled[-1:], len(PROMPT) + 3, TOKENS - 3)
        assert sampled == expected
        assert backend._executor.gave_up is None
        if logprobs is not None:
            pairs = zip(launched.take_logprobs(), backend.take_logprobs(), strict=True)
            for pair, other in pairs:
                assert [each for each, _ in pair.top] == [each for each, _ in other.top]
    assert sum("gave up" in record.message for record in caplog.records) == 1


def _masked(backend, gives_up_at=None):
    """Return ids of which each may be one of three groups, and the dispatches of each."""
    backend.begin(SAMPLED["penalties"], PROMPT, masked=True)
    ids, sampled, base, counts = list(PROMPT), [], 0, []
    for turn in range(TOKENS):
        mask = packed(np.arange(VOCAB) % 3 == turn % 3)
        if turn == gives_up_at:
            backend.device.write(backend._executor.gave_up, np.ones(1, np.uint32))
        before = backend.device.counters.copy()
        new = backend.sample_masked(ids, base, mask.copy)
        counts.append(backend.device.counters.since(before).dispatches)
        base, ids, sampled = base + len(ids), new, sampled + new
    assert [id_ % 3 for id_ in sampled] == [turn % 3 for turn in range(TOKENS)]
    return sampled, counts


def test_a_token_of_a_constraint_takes_one_dispatch_and_those_of_the_sampler(
    launched, package, device
):
    with closing(_backend(package, device, ONE)) as backend:
        (expected, before), (ids, after) = _masked(launched), _masked(backend)
        decode = launched._plan.decode.lowered
        assert ids == expected
        assert before[0] == after[0]  # the prompt is more than one row
        saved = len(decode.body) + len(decode.head) - 1
        assert {count - other for count, other in zip(before[1:], after[1:], strict=True)} == {
            saved
        }


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.thorough), 4])
def test_a_token_of_a_constraint_is_repeated_if_its_pass_gave_up(
    launched, package, device, at, caplog
):
    with closing(_backend(package, device, ONE)) as backend:
        with caplog.at_level(logging.WARNING):
            ids, counts = _masked(backend, gives_up_at=at)
        expected, launches = _masked(launched)
        assert ids == expected
        assert counts[at] > launches[at]  # the pass in vain, and the launches
        assert counts[at + 1 :] == launches[at + 1 :]
    assert sum("gave up" in record.message for record in caplog.records) == 1


def _batch_ids(backend, options=None):
    """Return ids of a sequence that is alone in a batch, and the dispatches of each step."""
    batch, (sequence, slot) = backend.batch(3, 64), (2, len(PROMPT) - 1)
    batch.fill([Row(id_, sequence, at) for at, id_ in enumerate(PROMPT[:-1])])
    if options is not None:
        batch.begin(sequence, options, PROMPT)
    step = batch.greedy if options is None else batch.sample
    ids = step([Row(PROMPT[-1], sequence, slot)], 1)[0]
    before = backend.device.counters.copy()
    ids += step([Row(ids[-1], sequence, slot + 1)], TOKENS)[0]
    return ids, backend.device.counters.since(before).dispatches / TOKENS


@pytest.mark.thorough
@pytest.mark.parametrize("options", [None, SAMPLED["penalties"]], ids=["greedy", "sampled"])
def test_a_sequence_alone_in_a_batch_takes_one_dispatch_a_token(launched, package, device, options):
    with closing(_backend(package, device, ONE)) as backend:
        (expected, before), (ids, after) = (
            _batch_ids(engine, options) for engine in (launched, backend)
        )
        alone = _ids(launched) if options is None else _sampled(launched, options)
        assert ids == expected == alone
        decode = launched._plan.decode.lowered
        saved = len(decode.body) + len(decode.head) + (1 if options is None else 0) - 1
        assert before - after == saved
        # The control: without blocks in int8 two sequences are launched phase by phase.
        rows = [Row(5, 0, 0), Row(9, 1, 0)]
        assert backend.batch(3, 64).greedy(rows, 4) == launched.batch(3, 64).greedy(rows, 4)


def test_workgroups_that_do_not_meet_are_found_by_the_trial(launched, package, device):
    several = replace(ONE, grids=(Grid(128, 64),), polls=1000)
    expected = _ids(launched)
    ids, decision = _ids_of(package, device, several)
    assert decision == ["dispatches"]
    assert ids == expected


def _change_source(monkeypatch, change):
    """Let the passes that are prepared from now on run another kernel than the one on trial."""
    get = Modules.get

    def changed(self, whole):
        module = get(self, whole)
        source = change(module.linked.source)
        assert source != module.linked.source
        return replace(module, linked=replace(module.linked, source=source))

    monkeypatch.setattr(Modules, "get", changed)


def _wait_for_one_more(source):
    return source.replace("goal += groups.x;", "goal += groups.x + 1u;")


def _withhold_a_word(source):
    """Leave out one of the words that a matrix product writes, whose output is number 3."""
    store = r"put1\(to_\w+ \+ \((\w+)\), .+\);"
    return re.sub(store, r"if (\1 != 3u) { \g<0> }", source, count=1)


@pytest.mark.thorough  # a test above writes the word that says that a pass gave up
@pytest.mark.parametrize("change", [_wait_for_one_more, _withhold_a_word])
def test_a_pass_that_waits_for_what_never_comes_gives_up_and_is_repeated(
    launched, package, device, monkeypatch, caplog, change
):
    backend = _backend(package, device, ONE)
    _change_source(monkeypatch, change)
    try:
        with caplog.at_level(logging.WARNING):
            expected = _ids(launched)
            assert _ids(backend) == expected
            assert backend._executor.gave_up is None
            # The ids say little about what the pass that gave up has left in the caches.
            logits, after = (
                runner.logits(expected[-1:], len(PROMPT) + TOKENS) for runner in (backend, launched)
            )
            np.testing.assert_array_equal(logits, after)
            before = device.counters.copy()
            assert _ids(backend) == expected
            assert device.counters.since(before).dispatches > 5 * TOKENS
    finally:
        backend.close()
    assert sum("gave up" in record.message for record in caplog.records) == 1


@pytest.mark.thorough
def test_a_change_that_withholds_nothing_does_not_make_a_pass_give_up(
    package, device, monkeypatch, caplog
):
    backend = _backend(package, device, ONE)
    _change_source(
        monkeypatch, lambda source: _withhold_a_word(source).replace("!= 3u", "!= 3000u")
    )
    try:
        _ids(backend)
        assert backend._executor.gave_up is not None
    finally:
        backend.close()
    assert not caplog.records


def _halves(words, size):
    """Return the number of passes, the words that the last one has used, and the others.

    Behind the second half of `size` words the buffer is filled up.
    """
    halves = words[HEAD_WORDS : HEAD_WORDS + 2 * size]
    count, (first, second) = int(words[0]), halves.reshape(2, size)
    return count, (second, first) if count % 2 == 0 else (first, second)


@pytest.mark.thorough
def test_different_passes_of_an_executor_take_turns_with_the_words(package, device):
    # Keys and values in f32, since a difference of 1e-7 can move one of f16 by a whole step.
    launched = _backend(package, device, kv_dtype="f32")
    backend = _backend(package, device, ONE, kv_dtype="f32")
    executor, plan = backend._executor, backend._plan
    decode, whole = plan.decode.lowered, executor.on_grid(plan.decode)
    passes = (
        executor.prepare_whole(plan.decode),
        executor.prepare_without(whole, whole.phases[-1:]),
    )
    module, counts, expected = executor._modules.get(whole), [], []
    try:
        for slot, number in enumerate((0, 1, 0, 1, 1, 0, 0, 1)):
            token = 7 * slot + 5
            Step(device, plan.state).write([token], slot)
            device.clear(decode.logits)
            executor.run(passes[number], 1)
            result = device.read(decode.logits).view(np.float32)
            expected.append(launched.logits([token], slot)[0])
            assert relative_error(result, expected[-1]) < 1e-4
            # One workgroup alone would not notice words that an earlier pass has left.
            count, (used, other) = _halves(
                device.read(module.words).view(np.uint32), module.linked.words
            )
            counts.append(count)
            assert (used != EMPTY).mean() > 0.9
            assert (other == EMPTY).all()
        assert counts == list(range(counts[0], counts[0] + len(counts)))
        # The control: no pass may take the words of another one.
        errors = [relative_error(a, b) for a, b in pairwise(expected)]
        assert min(errors) > 1e-2
        assert not executor.has_given_up()
    finally:
        backend.close()
        launched.close()


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.thorough), 5])
def test_tokens_after_a_failure_in_the_middle_are_run_again(launched, package, device, after):
    expected = _ids(launched)
    with closing(_backend(package, device, ONE)) as backend:
        first = backend.greedy(PROMPT, 0, 1)
        feed = backend.feed(first, len(PROMPT))
        feed.submit(after)
        feed.fence()
        gave_up = backend._executor.gave_up
        device.write(gave_up, np.ones(1, np.uint32))
        for _ in range(2):  # two fences are open when the failure is noticed
            feed.submit((TOKENS - after) // 2)
            feed.fence()
        feed.submit(TOKENS - after - (TOKENS - after) // 2 * 2)
        feed.fence()
        ids = [id_ for _ in range(4) for id_ in feed.collect()[0]]
        assert first + ids == expected
        assert backend._executor.gave_up is None


def test_a_software_adapter_gets_no_pass_whose_loops_it_may_end_early(package, device, monkeypatch):
    expected, decision = _ids_of(package, device, ONE)
    assert decision == ["one dispatch, 1 workgroups of 128 threads"]
    monkeypatch.setattr(limits, "SOFTWARE_ITERATIONS", 10)
    ids, decision = _ids_of(package, device, ONE)
    assert decision == (["dispatches"] if device.info.software else [decision[0]])
    assert ids == expected


def test_a_software_adapter_is_not_asked_to_wait(device):
    if not device.info.software:
        pytest.skip("the adapter is a GPU")
    assert unsupported(device.info, device.features) is not None
    assert find_grid(device) is None


@pytest.mark.parametrize(
    ("aliased_writes", "backend", "features", "may_work"),
    [
        (True, "Vulkan", {COHERENT_FEATURE}, True),
        (True, "Vulkan", set(), False),
        (True, "Metal", {COHERENT_FEATURE}, True),
        (False, "Vulkan", set(), True),
        (False, "Metal", {COHERENT_FEATURE}, False),
    ],
)
def test_workgroups_are_asked_to_wait_where_they_may_see_what_others_write(
    device, aliased_writes, backend, features, may_work
):
    info = replace(device.info, software=False, backend=backend, aliased_writes=aliased_writes)
    assert (unsupported(info, features) is None) is may_work
