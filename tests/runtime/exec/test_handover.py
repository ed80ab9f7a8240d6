"""Values are handed over word by word where the phases allow it, and stay in memory elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_device.buffers import BufferSlice
from rdrr_runtime.exec.persistent.handover import EMPTY, WIDTHS, assign_slots
from rdrr_runtime.exec.persistent.schedule import shared_buffers, waits
from support.fake_phases import changer, fake_phase, reader, writer

A, B = object(), object()
X = BufferSlice(A, 0, 64)
IN_MEMORY = ({}, {})


def _slots(*phases):
    return assign_slots(phases)[0]


def _handed(slots):
    """Return what each phase reads and writes of the values that are handed over."""
    return [(slot.reads, slot.writes) for slot in slots]


def test_a_value_that_a_later_phase_reads_is_handed_over():
    slots, words = assign_slots([writer(X), reader(X), reader(X)])
    assert _handed(slots) == [({}, {"x": 0}), ({"x": 0}, {}), ({"x": 0}, {})]
    assert words == 16


def test_values_have_words_of_their_own_and_begin_at_whole_vectors():
    y = BufferSlice(B, 0, 8)
    slots, words = assign_slots([writer(y), reader(y), writer(X), reader(X), writer(y), reader(y)])
    assert [slot.writes["x"] for slot in slots[::2]] == [0, 4, 20]
    assert [slot.reads["x"] for slot in slots[1::2]] == [0, 4, 20]
    assert words == 24


def test_a_value_that_no_phase_reads_stays_in_memory():
    assert _handed(_slots(writer(X))) == [IN_MEMORY]
    assert _handed(_slots(reader(X), writer(X))) == [IN_MEMORY] * 2  # it is read too early
    assert _handed(_slots(writer(X), reader(X)))[0] != IN_MEMORY


@pytest.mark.parametrize(("result", "is_handed"), [(X, False), (BufferSlice(B, 0, 64), True)])
def test_a_result_of_the_pass_stays_in_memory(result, is_handed):
    slots, _ = assign_slots([writer(X), reader(X)], results=(result,))
    assert bool(slots[0].writes) == bool(slots[1].reads) == is_handed


@pytest.mark.parametrize("fills", [True, False])
def test_only_a_value_that_its_writer_fills_is_handed_over(fills):
    slots, words = assign_slots([writer(X, fills=fills), reader(X)])
    assert [bool(slots[0].writes), bool(slots[1].reads), bool(words)] == [fills] * 3


@pytest.mark.parametrize(
    ("element", "is_handed"),
    [
        *((width, True) for width in WIDTHS),
        ("f16", False),
        ("vec4<f16>", False),
        ("vec3<f32>", False),
        ("atomic<u32>", False),
        ("Entry", False),
    ],
)
def test_only_elements_of_words_are_handed_over(element, is_handed):
    assert bool(_slots(writer(X, element), reader(X))[0].writes) == is_handed
    assert bool(_slots(writer(X), reader(X, element))[0].writes) == is_handed


def test_a_variable_that_is_no_array_is_not_handed_over():
    whole = fake_phase("_ = x.rows;", "read x: Step", x=X)
    assert _handed(_slots(writer(X), whole)) == [IN_MEMORY] * 2
    assert _handed(_slots(writer(X), reader(X), whole)) == [IN_MEMORY] * 3


def test_a_value_that_is_changed_in_place_has_two_places():
    slots, words = assign_slots([writer(X), changer(X), reader(X)])
    assert _handed(slots) == [({}, {"x": 0}), ({"x": 0}, {"x": 16}), ({"x": 16}, {})]
    assert words == 32


def test_a_new_value_in_the_same_memory_is_not_read_in_place_of_the_old_one():
    slots = _slots(writer(X), reader(X), writer(X), reader(X))
    assert [slot.reads for slot in slots[1::2]] == [{"x": 0}, {"x": 16}]


def test_a_range_larger_than_the_value_is_read_from_memory():
    part, whole = BufferSlice(A, 0, 32), X
    assert _handed(_slots(writer(part), reader(whole))) == [IN_MEMORY] * 2
    assert _handed(_slots(writer(part), reader(part), reader(whole))) == [IN_MEMORY] * 3
    assert _slots(writer(whole), reader(whole))[1].reads == {"x": 0}


@pytest.mark.parametrize("offset", [0, 16, 32])
def test_a_value_is_handed_over_though_another_one_overwrites_part_of_it_later(offset):
    first, second = BufferSlice(A, 0, 32), BufferSlice(A, offset, 16)
    slots = _slots(writer(first), reader(first), writer(second), reader(second))
    assert [slot.writes for slot in slots[::2]] == [{"x": 0}, {"x": 8}]
    assert [slot.reads for slot in slots[1::2]] == [{"x": 0}, {"x": 8}]


@pytest.mark.parametrize(("offset", "is_handed"), [(0, False), (16, False), (32, True)])
def test_values_that_are_read_together_stay_in_memory(offset, is_handed):
    first, second = BufferSlice(A, 0, 32), BufferSlice(A, offset, 16)
    slots = _slots(writer(first), reader(first), writer(second), reader(first), reader(second))
    assert [bool(slot.writes) for slot in slots[:3:2]] == [is_handed] * 2
    assert [bool(slot.reads) for slot in (slots[1], *slots[3:])] == [is_handed] * 3


def test_what_is_left_of_a_value_is_read_from_its_words():
    whole, rest, other = (BufferSlice(A, at, size) for at, size in ((0, 32), (0, 16), (16, 16)))
    slots = _slots(writer(whole), writer(other), reader(rest), reader(other))
    assert [slot.reads for slot in slots[2:]] == [{"x": 0}, {"x": 8}]
    partial = _slots(writer(whole), writer(other, fills=False), reader(rest), reader(other))
    assert [slot.reads for slot in partial[2:]] == [{}, {}]


def test_a_value_that_is_replaced_as_a_whole_is_still_handed_over():
    part = BufferSlice(A, 16, 16)
    slots = _slots(writer(part), reader(part), writer(X), reader(X))
    assert [slot.writes for slot in slots[::2]] == [{"x": 0}, {"x": 4}]


@pytest.mark.parametrize("element", ["f32", "vec2<f32>", "vec4<f32>"])
def test_an_aligned_part_is_read_at_its_place(element):
    part = BufferSlice(A, 32, 16)
    assert _slots(writer(X), reader(part, element))[1].reads == {"x": 8}


@pytest.mark.parametrize(
    ("element", "is_handed"), [("f32", True), ("vec2<f32>", True), ("vec4<f32>", False)]
)
def test_a_part_is_not_handed_over_between_the_elements_of_its_reader(element, is_handed):
    part = BufferSlice(A, 8, 16)
    slots = _slots(writer(X), reader(part, element))
    assert slots[1].reads == ({"x": 2} if is_handed else {})
    assert bool(slots[0].writes) == is_handed


def test_one_reader_that_needs_memory_keeps_the_value_there_for_all():
    assert _handed(_slots(writer(X), reader(X), reader(X, "f16"))) == [IN_MEMORY] * 3


def test_memory_that_no_phase_has_written_stays_in_memory():
    weight = BufferSlice(B, 0, 64)
    body, declared = "y[item] = x[item];", ("read x: array<f32>", "write y: array<f32>")
    product = fake_phase(body, *declared, x=weight, y=X)
    slots = _slots(product, reader(X))
    assert _handed(slots) == [({}, {"y": 0}), ({"x": 0}, {})]
    assert [slot.memory for slot in slots] == [{"x"}, set()]


def test_a_value_in_memory_that_is_changed_in_place_is_read_from_there():
    before, change, after = _slots(writer(X, fills=False), changer(X), reader(X))
    assert [slot.memory for slot in (before, change, after)] == [{"x"}, {"x"}, set()]
    assert _handed([change, after]) == [({}, {"x": 0}), ({"x": 0}, {})]
    control = _slots(writer(X), changer(X), reader(X))
    assert [slot.memory for slot in control] == [set()] * 3


def test_a_value_of_which_a_later_phase_changes_a_part_stays_in_memory():
    for change in (writer(X, fills=False), changer(X, fills=False)):
        slots = _slots(writer(X), reader(X), change, reader(X))
        assert _handed(slots) == [IN_MEMORY] * 4
        assert [slot.memory for slot in slots] == [{"x"}] * 4


def test_a_phase_waits_for_nothing_that_is_handed_over():
    phases = [writer(X), changer(X), reader(X)]
    assert waits(phases, _slots(*phases)) == [False] * 3
    assert shared_buffers(phases, _slots(*phases)) == set()


def test_a_phase_waits_for_a_value_in_memory():
    phases = [writer(X, fills=False), reader(X), writer(X), reader(X)]
    slots = _slots(*phases)
    assert waits(phases, slots) == [False, True, False, False]
    assert shared_buffers(phases, slots) == {id(A)}


def test_an_empty_word_is_no_value_of_any_type():
    word = np.array([EMPTY], np.uint32)
    assert np.isnan(word.view(np.float32)).all()
    assert np.isnan(word.view(np.float16)).all()
    assert -128 in word.view(np.int8)


def _random_phase(rng):
    """Return a phase that reads, writes or changes a range of 64 bytes, some of it or all."""
    first = 8 * int(rng.integers(0, 7))
    memory = BufferSlice(A, first, int(rng.integers(first // 8 + 1, 9)) * 8 - first)
    element = str(rng.choice(["f32", "f32", "vec2<f32>", "vec4<f32>", "f16"]))
    fills = bool(rng.random() < 0.75)
    return [
        reader(memory, element),
        writer(memory, element, fills=fills),
        changer(memory, fills=fills),
    ][rng.integers(3)]


def test_a_reader_sees_what_it_would_see_in_memory(rng):
    """A word in memory and a word that is handed over each have the number of their writer."""
    handed = 0
    for _ in range(2000):
        phases = [_random_phase(rng) for _ in range(rng.integers(2, 10))]
        slots, words = assign_slots(phases)
        expected, memory, given = np.full((3, max(16, words)), -1)
        for number, (phase, slot) in enumerate(zip(phases, slots, strict=True)):
            part = phase.buffers["x"]
            at = np.arange(part.offset // 4, part.end // 4)
            if phase.label != "writer":
                source, first = (given, slot.reads["x"]) if "x" in slot.reads else (memory, at[0])
                handed += "x" in slot.reads
                np.testing.assert_array_equal(source[first : first + len(at)], expected[at])
            if phase.label != "reader":
                if not phase.record.fills:
                    at = at[rng.random(len(at)) < 0.5]
                expected[at] = number
                if "x" in slot.writes:
                    given[slot.writes["x"] + at - part.offset // 4] = number
                else:
                    memory[at] = number
    assert handed > 100
