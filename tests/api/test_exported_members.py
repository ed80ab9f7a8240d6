from __future__ import annotations

import pytest
import rdrr


def test_exported_members_are_sorted_and_each_can_be_imported():
    assert rdrr.__all__ == sorted(rdrr.__all__, key=lambda name: (name.lower() == name, name))
    for name in rdrr.__all__:
        assert getattr(rdrr, name) is not None


def test_every_name_with_a_module_is_exported_and_nothing_else_is():
    assert set(rdrr._HOMES) | {"__version__"} == set(rdrr.__all__)
    assert dir(rdrr) == sorted(rdrr.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'transmute'"):
        _ = rdrr.transmute


def test_every_error_of_the_tree_is_exported():
    from rdrr_format import errors

    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RdrrError)
    }
    assert tree == set(rdrr._ERRORS)
