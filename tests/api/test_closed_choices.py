"""Closed choices: annotations that editors complete, one table each, any case."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import rdrr
from rdrr._load_options import LoadKeywords
from rdrr_converter.export import DTYPES, ExportDtype
from rdrr_converter.options import ConvertKeywords
from rdrr_converter.recipes import PROFILES, RECIPES, RecipeName
from rdrr_format.errors import UsageError
from rdrr_format.integrity import ALGORITHMS, HashAlgorithm
from rdrr_format.layouts import Layout, LayoutName
from rdrr_format.options import options_of
from rdrr_manifests.profiles import ProfileName
from rdrr_runtime.decode.strategies import AUTOREGRESSIVE, STRATEGIES, StrategyName, options_named
from rdrr_runtime.sampling.params import SamplingKeywords

OBJECTS = {
    rdrr.ConvertOptions: ConvertKeywords,
    rdrr.LoadOptions: LoadKeywords,
    rdrr.SamplingParams: SamplingKeywords,
}


@pytest.mark.parametrize(
    ("annotation", "table"),
    [
        (RecipeName, RECIPES),
        (ProfileName, PROFILES),
        (HashAlgorithm, ALGORITHMS),
        (LayoutName, tuple(Layout)),
        (ExportDtype, DTYPES),
        (StrategyName, (AUTOREGRESSIVE, *STRATEGIES)),
    ],
    ids=["recipe", "profile", "hash", "layout", "dtype", "strategy"],
)
def test_an_annotation_lists_what_its_table_holds(annotation, table):
    assert list(get_args(annotation)) == list(table)


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)
def test_keywords_are_typed_as_the_fields_of_their_object(kind):
    types = get_type_hints(kind)
    expected = {
        name: types[name] | str if option.in_bytes else types[name]  # a size may have a unit
        for name, option in options_of(kind).items()
    }
    assert get_type_hints(OBJECTS[kind]) == expected


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)
def test_a_field_with_choices_is_annotated_with_them(kind):
    for name, option in options_of(kind).items():
        if option.choices and not option.several:  # several are joined in a text
            annotation = get_type_hints(kind)[name]
            literals = [get_args(arg) or (arg,) for arg in get_args(annotation)]
            allowed = [
                literal for group in literals for literal in group if isinstance(literal, str)
            ]
            assert allowed == list(option.choices), name


@pytest.mark.parametrize(
    ("kind", "given", "held"),
    [
        (rdrr.ConvertOptions, {"quantize": "Q4_K_M"}, {"quantize": "q4_k_m"}),
        (rdrr.ConvertOptions, {"q4k_layout": "Column"}, {"q4k_layout": "column"}),
        (rdrr.LoadOptions, {"kv_dtype": "Q8_0"}, {"kv_dtype": "q8_0"}),
        (rdrr.LoadOptions, {"backend": "CPU", "verify": "NONE"}, {"backend": "cpu"}),
    ],
)
def test_a_choice_may_be_given_in_any_case(kind, given, held):
    options = kind(**given)
    assert {name: getattr(options, name) for name in held} == held


@pytest.mark.parametrize("wrong", [5, ["q4_k_m"], b"q4_k_m", "q4_k_x"])
def test_what_is_not_a_choice_is_wrong_usage_whatever_its_type(wrong):
    with pytest.raises(UsageError, match="`quantize` has"):
        rdrr.ConvertOptions(quantize=wrong)


def test_the_name_of_a_strategy_may_be_given_in_any_case():
    assert options_named("Speculative") == rdrr.Speculative()
    assert options_named("AR") is None
    with pytest.raises(UsageError, match="found lookahead"):
        options_named("Lookahead")
