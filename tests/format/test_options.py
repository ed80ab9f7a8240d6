"""Option objects: the docstring, the check and the flag follow from one declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass

import pytest
from rdrr_format.errors import UsageError
from rdrr_format.options import (
    check_fields,
    documented,
    fill,
    nearest,
    option,
    options_of,
    split_pairs,
)


@documented
@dataclass(frozen=True, kw_only=True)
class TeaOptions:
    """How tea is made."""

    leaf: str = option("black", "Which tea.", choices=("black", "green"))
    into: str = option("", "What goes into it.", choices=("milk", "honey", ""), several=True)
    minutes: float | None = option(None, "Time to steep.", minimum=1, flag="--steep")
    sugar: int = option(0, "Lumps of sugar.", expected="an even number", holds=lambda n: n % 2 == 0)
    notes: Mapping[str, str] = option({}, "What else to know.")
    brewed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_field_is_declared_once_and_documented_in_its_class():
    assert "minutes: Time to steep." in (TeaOptions.__doc__ or "")
    declared = options_of(TeaOptions)
    assert list(declared) == ["leaf", "into", "minutes", "sugar", "notes"]  # brewed is no option
    assert declared["leaf"].flag == "--leaf"
    assert declared["minutes"].flag == "--steep"


def test_objects_do_not_share_a_default_mapping():
    assert TeaOptions().notes == {}
    assert TeaOptions().notes is not TeaOptions().notes


def test_options_are_given_by_name_and_cannot_be_changed():
    with pytest.raises(TypeError):
        TeaOptions("green")  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        TeaOptions().leaf = "green"  # type: ignore[misc]
    assert TeaOptions(leaf="green").leaf == "green"


@pytest.mark.parametrize(
    ("allowed", "refused", "message"),
    [
        ({"leaf": "green"}, {"leaf": "mint"}, "`leaf` has no such value.*black, green.*mint"),
        ({"into": "honey"}, {"into": "milk,mint"}, "`into` .*milk, honey.*or several.*milk,mint"),
        ({"leaf": "black"}, {"leaf": "black,green"}, "`leaf` has no such value"),
        ({"minutes": 1}, {"minutes": 0.5}, "`minutes` is out of range.*at least 1.*0.5"),
        ({"minutes": None}, {"minutes": float("nan")}, "`minutes` is out of range"),
        ({"sugar": 2}, {"sugar": 3}, "`sugar` is out of range.*an even number.*3"),
    ],
)
def test_a_value_is_checked_against_what_its_field_declares(allowed, refused, message):
    assert TeaOptions(**allowed)
    with pytest.raises(UsageError, match=message):
        TeaOptions(**refused)


def test_keywords_fill_an_object_and_none_stands_for_the_default():
    filled = fill(TeaOptions, None, {"sugar": 4, "notes": None}, parameter="tea")
    assert filled == TeaOptions(sugar=4)


def test_an_object_is_returned_unchanged():
    given = TeaOptions(sugar=4)
    assert fill(TeaOptions, given, {}, parameter="tea") is given
    assert fill(TeaOptions, given, {"minutes": None}, parameter="tea") is given


def test_an_object_and_keywords_together_are_a_usage_error():
    with pytest.raises(UsageError, match=r"twice.*tea=TeaOptions\(\.\.\.\) or keywords.*sugar"):
        fill(TeaOptions, TeaOptions(), {"sugar": 4}, parameter="tea")


def test_an_unknown_keyword_is_a_usage_error_and_a_close_name_is_offered():
    with pytest.raises(UsageError, match=r"suger.*did you mean sugar"):
        fill(TeaOptions, None, {"suger": 4}, parameter="tea")
    with pytest.raises(UsageError, match="no keyword of this name"):
        fill(TeaOptions, TeaOptions(), {"milk": None}, parameter="tea")


def test_the_refusal_of_a_keyword_lists_all_that_the_function_takes():
    with pytest.raises(UsageError, match=r"expected milk, leaf, .*sugar.*, found suger"):
        fill(TeaOptions, None, {"suger": 4}, parameter="tea", beside={"milk": ()})


def test_pairs_are_parsed_and_malformed_or_repeated_ones_are_usage_errors():
    assert split_pairs(["a=1", "b=c=2"], "pair") == {"a": "1", "b": "c=2"}
    with pytest.raises(UsageError, match="not a pair"):
        split_pairs(["a"], "pair")
    with pytest.raises(UsageError, match="pair given twice"):
        split_pairs(["a=1", "a=2"], "pair")


@dataclass(frozen=True, kw_only=True)
class PotOptions:
    size: int | None = option(None, "Size.", in_bytes=True, minimum=10, also_known_as=("volume",))

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_size_may_be_text_with_a_unit():
    assert PotOptions(size="2KiB").size == PotOptions(size=2048).size == 2048
    with pytest.raises(UsageError, match=r"`size` is not a size.*64MiB.*found many"):
        PotOptions(size="many")
    with pytest.raises(UsageError, match="at least 10"):
        PotOptions(size="7B")


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [("Size", "size"), ("volum", "size"), ("lids", "lid"), ("cover", "lid")],
)
def test_names_of_other_programs_and_other_arguments_are_guessed(keyword, meant):
    with pytest.raises(UsageError, match=f"did you mean {meant}?"):
        fill(PotOptions, None, {keyword: 1}, parameter="pot", beside={"lid": ("cover",)})


def test_nothing_is_guessed_where_no_name_is_near():
    with pytest.raises(UsageError) as raised:
        fill(PotOptions, None, {"temperature": 1}, parameter="pot")
    assert raised.value.hint is None
    assert not nearest("stream", ["temperature"], {"temp": "temperature"})
    assert nearest("tempo", ["temperature"], {"temp": "temperature"}) == "temperature"


def test_several_choices_are_held_in_their_order_and_once():
    assert TeaOptions(into="Honey, milk,honey").into == "milk,honey"
    assert TeaOptions(into="HONEY").into == "honey"
