"""Tables for notebooks: `_repr_html_` of what the API returns."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
import rdrr
from rdrr.difference import compare_packages
from rdrr.evaluate import Comparison, Perplexity
from rdrr_format.html_tables import facts_table, rows_table
from rdrr_manifests.faults import Fault, ValidationReport
from rdrr_runtime.decode.stats import GenerationStats

HOSTILE = "<script>alert('1')</script>"


class Balanced(HTMLParser):
    """Checks that each element is closed, and collects the elements and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: set[str] = set()
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, _attributes):
        self.open.append(tag)
        self.elements.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


def table_of(thing: object) -> Balanced:
    page = Balanced(thing._repr_html_())
    assert page.elements <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    return page


def test_text_is_escaped_wherever_it_is():
    pages = (
        facts_table(HOSTILE, {HOSTILE: HOSTILE}),
        rows_table(HOSTILE, (HOSTILE,), [(HOSTILE,)]),
    )
    for page in pages:
        assert "script" not in Balanced(page).elements
        assert Balanced(page).text.count(HOSTILE) == 3


def test_a_fact_that_is_none_is_left_out_and_an_empty_cell_is_not():
    assert facts_table("t", {"a": None, "b": 0}).count("<tr>") == 1
    assert "<td></td>" in rows_table("t", ("a",), [(None,)])


def test_a_package_its_weights_and_its_validation_are_tables(shallow_package):
    package = rdrr.open_package(shallow_package)
    assert "small-llama" in table_of(package).text
    assert "model.norm.weight" in table_of(rdrr.open(shallow_package)).text
    report = rdrr.validate(shallow_package)
    assert "valid (files)" in table_of(report).text
    assert "valid" in repr(report)
    assert "\n" not in repr(report)


def test_the_faults_of_a_report_are_rows():
    fault = Fault("shard-hash", "error", "shards[0]", HOSTILE, "a", "b")
    report = ValidationReport(HOSTILE, "deep", (fault, fault))
    page = table_of(report)
    assert "invalid (deep)" in page.text
    assert page.text.count("shard-hash") == 2
    assert repr(report).endswith("invalid, level='deep', errors=2, warnings=0)")


def test_the_stats_of_a_generation_and_its_model_are_tables(shallow_package):
    with rdrr.load(shallow_package, backend="cpu", context=64) as model:
        generation = model.generate("And it", max_tokens=4)
        generation.read()
        page = table_of(generation.stats)
        assert "tokens per second" in page.text
        assert "new_tokens=4" in repr(generation.stats)
        assert "small-llama" in table_of(model).text
        assert repr(model) == "<Model 'small-llama' on 'cpu': 64 tokens of context>"
    assert "tokens per second" not in table_of(GenerationStats()).text  # nothing was measured


def test_a_comparison_is_a_table():
    comparison = Comparison(
        Perplexity(10, 1, 2.0), Perplexity(10, 1, 1.9), 0.1, 0.4, 0.8, 0.01, 0.02
    )
    page = table_of(comparison)
    for words in ("perplexity of the base", f"{comparison.ratio:.4f}", "0.1 ± 0.02", "80.00 %"):
        assert words in page.text
    assert f"ratio={comparison.ratio:.4f}" in repr(comparison)


@pytest.mark.parametrize("same", [True, False])
def test_a_difference_is_a_table(shallow_checkpoint, shallow_package, tmp_path, same):
    other = shallow_package
    if not same:
        other = tmp_path / "q8_0"
        rdrr.convert(shallow_checkpoint, other, quantize="q8_0")
    with rdrr.open_package(shallow_package) as first, rdrr.open_package(other) as second:
        comparison = compare_packages(first, second)
    page = table_of(comparison)
    assert ("Same model" in page.text) == same
    assert "model.norm.weight" in page.text or "more" in page.text
    assert ("same model" in repr(comparison)) == same


def test_results_show_themselves_in_one_line_and_as_tables(shallow_checkpoint, tmp_path):
    converted = rdrr.convert(shallow_checkpoint, tmp_path / "p")
    exported = rdrr.export(tmp_path / "p", tmp_path / "out.gguf")
    pushed = rdrr.push(tmp_path / "p", "org/name", dry_run=True)
    manifest = rdrr.open_package(tmp_path / "p").manifest
    completion = rdrr.Completion("and so on " * 20, [1, 2], [3], "length")
    for result in (converted, exported, pushed, manifest, completion):
        assert repr(result).startswith(f"<{type(result).__name__} ")
        assert len(repr(result)) < 200 + len(str(tmp_path))
        assert "\n" not in repr(result)
        assert table_of(result).text
    odd = rdrr.Completion(HOSTILE, [1], [2], "stop")
    assert HOSTILE in table_of(odd).text
