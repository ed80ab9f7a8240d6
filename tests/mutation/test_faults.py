"""Tests of the planted faults: each still applies to the code, and its tests exist."""

from __future__ import annotations

from collections import Counter

import pytest
from mutation.copies import Copy
from mutation.faults import known_survivors, read_faults
from support.commands import ROOT

FAULTS = read_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_and_its_tests_exist(fault) -> None:
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert fault.applied(text) != text
    assert 1 <= len(fault.tests) <= 3
    for test in fault.tests:
        path, _, function = test.partition("::")
        assert (ROOT / path).exists(), test
        if function:
            assert f"def {function.partition('[')[0]}(" in (ROOT / path).read_text(
                encoding="utf-8"
            ), test


def test_a_fault_whose_place_is_gone_is_refused() -> None:
    fault = FAULTS[0]
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="occurs 0 times"):
        fault.applied(text.replace(fault.find, ""))
    with pytest.raises(ValueError, match="occurs 2 times"):
        fault.applied(text + fault.find)


def test_there_are_enough_faults_with_names_of_their_own() -> None:
    counts = Counter(fault.name for fault in FAULTS)
    assert len(counts) >= 80
    assert set(counts.values()) == {1}
    assert set(known_survivors()) <= set(counts)


@pytest.mark.thorough
def test_a_copy_has_the_fault_and_then_the_code_again(tmp_path) -> None:
    copy, fault = Copy(tmp_path), FAULTS[0]
    path, text = tmp_path / fault.file, (ROOT / fault.file).read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
    with copy.with_fault(fault):
        assert path.read_text(encoding="utf-8") == fault.applied(text)
    assert path.read_text(encoding="utf-8") == text
