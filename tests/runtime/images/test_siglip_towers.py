"""Towers with SigLIP's body compute what those of transformers do, from checkpoint to features."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdrr_converter.convert import convert
from rdrr_manifests.package import open_package
from rdrr_runtime.gpu_tower import GpuTower
from rdrr_runtime.images.patches import ImagePatches
from rdrr_runtime.images.places import Places
from rdrr_runtime.reference.tower import CpuTower
from support.checkpoints import make_multimodal
from support.comparison import relative_error
from support.images import pixels_of
from support.lowered import MATRIX_SHAPES
from support.seeds import generator_of
from support.towers import VISION
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

PATCH = 14
TOWER = {"num_hidden_layers": 2, "image_size": 5 * PATCH}
"""Positions that no grid of the tests has as many of."""

TILES = (3, 4, 4)
CPU, HALF = 1e-4, 1e-2


class Towers:
    """A model of transformers, and its packages with towers in float32 and in F16."""

    def __init__(self, folder: Path, rng: np.random.Generator, kind: str) -> None:
        self.model, self.rng = make_multimodal(kind, rng, TOWER), rng
        self.model.save_pretrained(folder / "model")
        for name, options in (("f32", {"vision_quantize": "f32"}), ("f16", {})):
            convert(folder / "model", folder / name, quantize="f16", **options)
        self.packages = {name: open_package(folder / name) for name in ("f32", "f16")}

    def patches(self, grid: tuple[int, int, int]) -> ImagePatches:
        values = self.rng.standard_normal((int(np.prod(grid)), 3 * PATCH**2))
        return ImagePatches(values.astype(np.float32), grid)

    def expected(self, image: ImagePatches) -> np.ndarray:
        """Return the embeddings of transformers."""
        pixels = torch.from_numpy(pixels_of(image, PATCH))[None]
        with torch.no_grad():
            features = self.model.model.get_image_features(pixels).pooler_output
        return torch.cat(list(features)).numpy()


@pytest.fixture(
    scope="module", params=["smolvlm", pytest.param("idefics3", marks=pytest.mark.thorough)]
)
def towers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Towers:
    return Towers(tmp_path_factory.mktemp("towers"), generator_of(request), request.param)


def error(tower: Any, image: ImagePatches, expected: np.ndarray) -> float:
    features = tower.encode(image)
    assert features.grid == (image.grid[0], image.grid[1] // 2, image.grid[2] // 2)
    assert features.taps == ()
    return relative_error(features.embeddings, expected)


@pytest.mark.parametrize("grid", [TILES, (1, 2, 2), (1, 6, 6), (2, 10, 10)])
def test_embeddings_of_tiles_are_those_of_transformers(towers, grid):
    image = towers.patches(grid)
    expected = towers.expected(image)
    assert error(CpuTower(towers.packages["f32"]), image, expected) <= CPU
    assert error(CpuTower(towers.packages["f16"]), image, expected) <= HALF


@pytest.mark.parametrize(("kind", "limit"), [("f32", 1e-3), ("f16", HALF)])
def test_the_gpu_computes_the_same_for_any_number_of_tiles(towers, device, kind, limit):
    with closing(GpuTower(towers.packages[kind], device)) as tower:
        for grid in (TILES, (1, 6, 6), (20, 4, 4)):  # the last needs larger buffers
            image = towers.patches(grid)
            assert error(tower, image, towers.expected(image)) <= limit


@pytest.mark.thorough
def test_products_and_attention_on_matrices_stay_within_the_bound_of_f16(
    towers, device, monkeypatch
):
    """Here each thread multiplies elements, since no software adapter multiplies matrices."""
    stated = replace(device.capabilities, matrices=MATRIX_SHAPES)
    monkeypatch.setattr(type(device), "capabilities", property(lambda _: stated))
    with closing(GpuTower(towers.packages["f16"], device)) as tower:
        image = towers.patches((2, 12, 12))
        assert error(tower, image, towers.expected(image)) <= HALF
        names = " ".join(phase.name for part in tower._buffers.parts for phase in part.phases)
        assert "attention_subgroup" in names
        assert "matmul_subgroup" in names


def test_rows_and_columns_of_a_tile_are_told_apart(towers):
    image = towers.patches((1, 4, 4))
    squares = image.patches.reshape(2, 2, 2, 2, -1)
    swapped = ImagePatches(squares.transpose(1, 0, 3, 2, 4).reshape(16, -1), image.grid)
    tower = CpuTower(towers.packages["f32"])
    assert error(tower, image, towers.expected(image)) <= CPU
    assert error(tower, swapped, towers.expected(image)) > HALF


@pytest.mark.parametrize("grid", [7, 26, 27, 32])
def test_patches_have_the_positions_of_transformers_at_any_size(grid: int) -> None:
    for length in (1, 2, 5, 9, 26, 27, 31, 32, 60):
        image = ImagePatches(
            np.zeros((2 * length, VISION.patch_inputs), np.float32), (1, 2, length)
        )
        places = Places.of(VISION.model_copy(update={"merge_size": 1}), image)
        rows, weights = places.interpolation(grid, "nearest")
        assert np.array_equal(rows[:, 0], positions_of_transformers(grid, length))
        assert np.array_equal(weights, np.tile([1, 0, 0, 0], (2 * length, 1)))


def positions_of_transformers(grid: int, length: int) -> np.ndarray:
    """Return the position of each patch of an image of two rows."""
    embeddings = SmolVLMVisionEmbeddings.__new__(SmolVLMVisionEmbeddings)
    torch.nn.Module.__init__(embeddings)
    embeddings.patch_size, embeddings.num_patches_per_side = 1, grid
    embeddings.patch_embedding = lambda pixels: torch.zeros(1, 1, *pixels.shape[2:])
    embeddings.position_embedding = lambda ids: ids[..., None].float()
    mask = torch.ones(1, 2, length, dtype=torch.bool)
    return embeddings(torch.zeros(1, 3, 2, length), mask)[0, :, 0].numpy().astype(int)
