"""`rdrr report`: statistics of a conversion, in the terminal and as a page."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest
from rdrr._report_html import render
from rdrr._report_plots import cost_plot, size_plot, text_plots
from rdrr._report_view import read_report, view
from rdrr_converter.convert import convert
from rdrr_manifests.models.conversion_report import (
    ConversionReport,
    ReportedDivergence,
    ReportedMeasurement,
)
from support.commands import error_line, rdrr
from support.safetensor_files import from_stored, llama_tensors, to_stored, write_llama

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def package(tmp_path, rng):
    """A package in which one tensor overflows and one has a far larger error than the others."""
    tensors = llama_tensors(rng, "F32")
    tensors["model.layers.0.self_attn.k_proj.weight"][3, 3] = 1e7
    values = from_stored(tensors[UP])
    tensors[UP] = to_stored(values * np.exp2(rng.integers(-6, 7, values.shape)), "F32")
    convert(write_llama(tmp_path / "source", tensors), tmp_path / "package")
    return tmp_path / "package"


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def rectangles(self, kind):
        return [
            element
            for tag, element in self.elements
            if tag == "rect" and (element.get("class") or "").startswith(kind)
        ]


def test_the_counts_agree_with_the_report(package):
    report = read_report(package)
    result = view(report)
    assert [one.name for one in result.worst] == sorted(
        (tensor.name for tensor in report.tensors if tensor.relative_rmse),
        key=lambda name: -{tensor.name: tensor.relative_rmse for tensor in report.tensors}[name],
    )
    assert result.worst[0].name == UP
    assert len(result.parts) == 7
    assert result.layers == (0, 1)
    assert {one.name for one in result.outside} == {"model.embed_tokens.weight", "lm_head.weight"}
    assert sum(share.share for share in result.types) == pytest.approx(1.0)
    weights = {tensor.name: np.prod(tensor.shape) for tensor in report.tensors}
    squares = sum(weights[tensor.name] * tensor.relative_rmse**2 for tensor in report.tensors)
    assert result.mean_error == pytest.approx(np.sqrt(squares / sum(weights.values())))


def test_the_cell_of_experts_shows_the_one_with_the_largest_error(package):
    report = read_report(package)
    base = next(tensor for tensor in report.tensors if tensor.name == UP)
    experts = tuple(
        base.model_copy(
            update={
                "name": f"model.layers.1.mlp.experts.{number}.down_proj.weight",
                "relative_rmse": error,
            }
        )
        for number, error in enumerate((0.1, 0.3, 0.2))
    )
    result = view(report.model_copy(update={"tensors": (*report.tensors, *experts)}))
    cells = result.row("mlp.experts.down_proj")
    assert [(cell.layer, cell.tensors, cell.error) for cell in cells] == [(1, 3, 0.3)]


def test_the_layers_of_a_vision_tower_have_cells_of_their_own(package):
    report = read_report(package)
    base = next(tensor for tensor in report.tensors if tensor.name == UP)
    name = "visual.layers.1.mlp.up_proj.weight"
    of_tower = base.model_copy(update={"name": name, "relative_rmse": 0.5})
    result = view(report.model_copy(update={"tensors": (*report.tensors, of_tower)}))
    cells = {part: result.row(part) for part in ("visual.mlp.up_proj", "mlp.up_proj")}
    assert [(cell.layer, cell.error) for cell in cells["visual.mlp.up_proj"]] == [(1, 0.5)]
    assert [cell.tensors for cell in cells["mlp.up_proj"]] == [1, 1]


def test_the_page_is_self_contained_and_shows_every_part_of_every_layer(package):
    report = view(read_report(package))
    html = render(report)
    page = Page(html)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe"}
    assert "http" not in html
    assert "@import" not in html
    assert "url(" not in html
    heat = page.rectangles("heat")
    assert len(heat) == 2 * 7 * 2  # two pictures of seven parts and two layers
    strengths = [float(cell["fill-opacity"] or 0) for cell in heat]
    assert max(strengths) == 1.0
    # Only what is kept in F32 has no colour at all.
    assert sum(strength == 0.0 for strength in strengths) == 2
    assert len(set(strengths)) > 3
    # The bar of bytes is as wide as its parts, less what keeps them apart.
    widths = [
        float(rectangle["width"] or 0)
        for rectangle in page.rectangles("k")
        if rectangle["height"] == "26"
    ]
    assert sum(widths) == pytest.approx(960, rel=0.01)
    for tensor in report.report.tensors:
        assert tensor.name in page.text
    assert "kept in F32" in page.text
    assert "prefers-color-scheme: dark" in html
    # Each table scrolls by itself, so that a narrow screen does not scroll the page.
    assert all(
        before.rstrip().endswith('<div class="scroll">') for before in html.split("<table")[:-1]
    )
    assert "usual for the type" in page.text


def test_names_are_shown_as_they_are_and_not_read_as_html(package):
    report = read_report(package)
    odd = report.model_copy(update={"model_id": "<b>&", "notes": ("<script>alert(1)</script>",)})
    html = render(view(odd))
    assert "<script>" not in html
    assert "<script>alert(1)</script>" in Page(html).text
    assert render(view(odd)) == html


def test_without_any_loss_there_is_no_heat_map(tmp_path, rng):
    source = write_llama(tmp_path / "source", llama_tensors(rng))
    convert(source, tmp_path / "package", quantize="f32")
    page = Page(render(view(read_report(tmp_path / "package"))))
    assert page.rectangles("heat") == []
    assert "Tensors that lost most" not in page.text
    assert "F32" in page.text


def test_the_command_prints_the_report_writes_the_page_and_prints_json(package, tmp_path):
    done = rdrr("report", package, "--worst", 1, code=0)
    assert done.out.count(UP) == 1
    for word in ("Q4_K", "bits per weight", "worst block", "kept in F32", "self_attn.q_proj"):
        assert word in done.out
    out = tmp_path / "report.html"
    done = rdrr("report", package, "--html", out)
    assert (done.code, done.out) == (0, "")
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    output = rdrr("report", package, "--json")
    assert output.json() == json.loads(
        (package / "conversion-report.json").read_text(encoding="utf-8")
    )
    assert ConversionReport.model_validate(output.json()).model_id == "source"


def test_a_report_that_cannot_be_shown_is_one_error_line(package, tmp_path):
    done = rdrr("report", package, "--html", tmp_path / "nowhere" / "report.html")
    assert "no such file or folder" in error_line(done, 1)
    (package / "conversion-report.json").write_text("{}", encoding="utf-8")
    assert "not a conversion report" in error_line(rdrr("report", package))
    (package / "conversion-report.json").unlink()
    done = rdrr("report", package)
    assert "no conversion-report.json" in error_line(done, 1)
    assert rdrr("validate", package).code == 0


def with_figures(report, usual=True):
    """A report with a measurement of two packages, and estimates of 14 tensors."""
    tensors = tuple(
        tensor.model_copy(update={"divergence": 0.001 * number or None})
        for number, tensor in enumerate(report.tensors[:15])
    )
    figures = {"standard_error": 0.001, "same_top": 0.9, "perplexity": 8.0}
    parts = [
        ReportedDivergence(mean=mean, bytes=size, **figures)
        for mean, size in ((0.01, 1 << 20), (0.02, 1 << 21))
    ]
    measured = ReportedMeasurement(
        tokens=100, source_perplexity=7.9, package=parts[0], usual=parts[1] if usual else None
    )
    others = report.tensors[15:]
    return report.model_copy(update={"measured": measured, "tensors": (*tensors, *others)})


def test_the_plot_of_sizes_shows_both_packages_where_their_figures_are(package):
    plot = size_plot(view(with_figures(read_report(package))), 960)
    this, other = plot.points
    assert this.x < other.x
    assert plot.bottom - this.y == pytest.approx((plot.bottom - other.y) / 2, abs=0.02)
    assert this.high < this.y < this.low < plot.bottom
    assert "this package: 1.0 MiB, 0.01 nats" in this.label
    alone = size_plot(view(with_figures(read_report(package), usual=False)), 960)
    assert [point.x for point in alone.points] == [pytest.approx((80 + 920) / 2)]
    assert size_plot(view(read_report(package)), 960) is None


def test_the_tensors_that_cost_most_come_first_in_page_and_card(package):
    report = with_figures(read_report(package))
    costly = sorted(report.tensors[1:15], key=lambda tensor: -tensor.divergence)
    plot = cost_plot(view(report), 960)
    assert [bar.name for bar in plot.bars] == [tensor.name for tensor in costly[:12]]
    assert plot.bars[0].width == pytest.approx(2 * plot.bars[7].width, abs=0.02)
    assert plot.share == pytest.approx(sum(range(3, 15)) / sum(range(15)))
    page = Page(render(view(report)))
    assert len([rect for rect in page.elements if rect[0] == "rect" and "cost" in str(rect)]) == 12
    lines = text_plots(view(report))
    bars = {line.split(" | ")[0][2:]: line.count("█") for line in lines if "█" in line}
    assert bars["this package"] == bars["without the options for quality and size"] / 2 == 12
    assert bars[costly[0].name] == 2 * bars[costly[7].name] == 24
    plain = read_report(package)
    assert cost_plot(view(plain), 960) is None
    assert text_plots(view(plain)) == []
    assert "cost most" not in Page(render(view(plain))).text
