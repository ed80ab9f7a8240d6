"""Towers of Gemma compute what those of transformers do, from checkpoint to features."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdrr_converter.convert import convert
from rdrr_format.errors import GenerationError
from rdrr_manifests.package import open_package
from rdrr_runtime.gpu_tower import GpuTower
from rdrr_runtime.images.patches import ImagePatches, image_patches
from rdrr_runtime.reference.tower import CpuTower
from support.checkpoints import make_multimodal
from support.comparison import relative_error
from support.gemma_images import inputs_of_gemma4, make_gemma4, patches_of_gemma4
from support.images import drawn_image, pixels_of
from support.seeds import generator_of
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

PATCH, SIDE = 14, 8
TOWER = {"num_hidden_layers": 2, "image_size": SIDE * PATCH}
"""An image of 8 x 8 patches, of which 4 x 4 tokens are made."""

SIZE = {"height": SIDE * PATCH, "width": SIDE * PATCH}

CPU, HALF = 1e-4, 1e-2


class Towers:
    """A model of transformers, and its packages with towers in float32 and in F16."""

    def __init__(self, folder: Path, rng: np.random.Generator) -> None:
        self.model, self.rng = make_multimodal("gemma3", rng, TOWER), rng
        self.model.save_pretrained(folder / "model")
        settings = {"image_processor_type": "Gemma3ImageProcessor", "size": SIZE}
        (folder / "model/preprocessor_config.json").write_text(json.dumps(settings), "utf-8")
        self.convert(folder)

    def convert(self, folder: Path) -> None:
        for name, options in (("f32", {"vision_quantize": "f32"}), ("f16", {})):
            convert(folder / "model", folder / name, quantize="f16", **options)
        self.packages = {name: open_package(folder / name) for name in ("f32", "f16")}

    def patches(self) -> ImagePatches:
        values = self.rng.standard_normal((SIDE**2, 3 * PATCH**2))
        return ImagePatches(values.astype(np.float32), (1, SIDE, SIDE))

    def expected(self, image: ImagePatches) -> np.ndarray:
        """Return the embeddings of transformers."""
        pixels = torch.from_numpy(pixels_of(image, PATCH))
        with torch.no_grad():
            return self.model.model.get_image_features(pixels).pooler_output[0].numpy()


@pytest.fixture(scope="module")
def towers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Towers:
    return Towers(tmp_path_factory.mktemp("towers"), generator_of(request))


def error(tower: Any, image: ImagePatches, expected: np.ndarray) -> float:
    features = tower.encode(image)
    assert features.grid == (1, SIDE // 2, SIDE // 2)
    assert features.taps == ()
    return relative_error(features.embeddings, expected)


def test_embeddings_of_gemma_3_are_those_of_transformers(towers, device):
    image = towers.patches()
    expected = towers.expected(image)
    assert error(CpuTower(towers.packages["f32"]), image, expected) <= CPU
    assert error(CpuTower(towers.packages["f16"]), image, expected) <= HALF
    for kind, limit in (("f32", 1e-3), ("f16", HALF)):
        with closing(GpuTower(towers.packages[kind], device)) as tower:
            assert error(tower, image, expected) <= limit


def test_an_image_of_any_size_becomes_the_embeddings_that_it_becomes_in_transformers(towers):
    package, image = towers.packages["f32"], drawn_image(90, 61)
    judged = Gemma3ImageProcessorPil(size=SIZE)(image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = towers.model.model.get_image_features(judged).pooler_output[0].numpy()
    patches = image_patches(package.manifest.processor, image)
    assert error(CpuTower(package), patches, expected) <= CPU


def test_rows_and_columns_of_an_image_are_told_apart(towers):
    image = towers.patches()
    squares = image.patches.reshape(SIDE // 2, SIDE // 2, 2, 2, -1)
    swapped = ImagePatches(squares.transpose(1, 0, 3, 2, 4).reshape(SIDE**2, -1), image.grid)
    assert error(CpuTower(towers.packages["f32"]), swapped, towers.expected(image)) > HALF


class TowersOfGemma4(Towers):
    """The same for Gemma 4, whose images have any number of squares of 3 x 3 patches."""

    def __init__(self, folder: Path, rng: np.random.Generator, **tower: Any) -> None:
        self.model, self.rng = make_gemma4(rng, {"num_hidden_layers": 2, **tower}), rng
        self.model.save_pretrained(folder / "model")
        settings = {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70}
        (folder / "model/preprocessor_config.json").write_text(json.dumps(settings), "utf-8")
        self.convert(folder)

    def expected(self, image: ImagePatches) -> np.ndarray:
        """Return the embeddings of transformers."""
        with torch.no_grad():
            features = self.model.model.get_image_features(**inputs_of_gemma4(image))
        return features.pooler_output[0].numpy()


@pytest.fixture(scope="module")
def of_gemma4(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TowersOfGemma4:
    return TowersOfGemma4(tmp_path_factory.mktemp("gemma4"), generator_of(request))


def worst(tower: Any, image: ImagePatches, expected: np.ndarray) -> float:
    features = tower.encode(image)
    assert features.grid == (1, image.grid[1] // 3, image.grid[2] // 3)
    return relative_error(features.embeddings, expected)


@pytest.mark.parametrize("grid", [(6, 9), (3, 24), (12, 3)])
def test_embeddings_of_gemma_4_are_those_of_transformers_at_any_size(of_gemma4, grid):
    image = patches_of_gemma4(of_gemma4.rng, *grid)
    expected = of_gemma4.expected(image)
    assert worst(CpuTower(of_gemma4.packages["f32"]), image, expected) <= CPU
    assert worst(CpuTower(of_gemma4.packages["f16"]), image, expected) <= HALF


@pytest.mark.parametrize(
    ("kind", "limit"), [pytest.param("f32", 1e-3, marks=pytest.mark.thorough), ("f16", HALF)]
)
def test_the_gpu_computes_the_same_for_gemma_4(of_gemma4, device, kind, limit):
    with closing(GpuTower(of_gemma4.packages[kind], device)) as tower:
        for grid in ((6, 9), (18, 21)):  # the second needs larger buffers
            image = patches_of_gemma4(of_gemma4.rng, *grid)
            assert worst(tower, image, of_gemma4.expected(image)) <= limit


def test_an_image_becomes_the_embeddings_that_it_becomes_in_gemma_4_of_transformers(of_gemma4):
    package, image = of_gemma4.packages["f32"], drawn_image(200, 330)
    judge = Gemma4ImageProcessorPil(max_soft_tokens=70)
    judged = judge(images=[image], return_tensors="pt")
    judged = {name: judged[name] for name in ("pixel_values", "image_position_ids")}
    with torch.no_grad():
        expected = of_gemma4.model.model.get_image_features(**judged).pooler_output[0].numpy()
    patches = image_patches(package.manifest.processor, image)
    assert worst(CpuTower(package), patches, expected) <= CPU


def test_rows_and_columns_of_gemma_4_are_told_apart(of_gemma4):
    image = patches_of_gemma4(of_gemma4.rng, 6, 9)
    swapped = ImagePatches(image.patches, (1, 9, 6))
    features = CpuTower(of_gemma4.packages["f32"]).encode(swapped)
    assert relative_error(features.embeddings, of_gemma4.expected(image)) > HALF


def test_an_image_with_more_rows_than_the_tower_has_positions_is_refused(of_gemma4):
    with pytest.raises(GenerationError, match="at most 48, found 51 x 3"):
        CpuTower(of_gemma4.packages["f32"]).encode(patches_of_gemma4(of_gemma4.rng, 51, 3))


def test_products_with_limits_are_those_of_transformers(rng, tmp_path, device):
    """The limits lie within the values, so that without them the features are others."""
    towers = TowersOfGemma4(tmp_path, rng, use_clipped_linears=True)
    package, image = towers.packages["f32"], patches_of_gemma4(rng, 6, 9)
    expected = towers.expected(image)
    assert worst(CpuTower(package), image, expected) <= CPU
    with closing(GpuTower(package, device)) as tower:
        assert worst(tower, image, expected) <= 1e-3
    for name, buffer in towers.model.model.vision_tower.named_buffers():
        if name.endswith(("_min", "_max")):
            buffer.mul_(100)
    assert worst(CpuTower(package), image, towers.expected(image)) > HALF
