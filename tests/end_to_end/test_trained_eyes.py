"""A small model that was trained to see says what is in pictures, unless a fault is planted.

`benchmarks/train_seeing.py` trained it in transformers, on other pictures of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import rdrr
from pictures import Picture, picture
from rdrr_runtime.images import patches
from rdrr_runtime.images.rows import SeenImage
from support.image_prompts import image_part, text, user
from support.selected_tests import is_covering
from train_seeing import QUESTION

CHECKPOINT = Path(__file__).parents[1] / "data/small-qwen3-vl"
RIGHT, PLANTED = 0.95, 0.5
SEEN, WRONG = (16, 12) if is_covering() else (40, 24)  # pictures


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eyes") / "package"
    rdrr.convert(CHECKPOINT, folder, quantize="f16")
    return folder


def pictures(count: int) -> list[Picture]:
    """Return pictures of a seed with which nothing was trained."""
    rng = np.random.default_rng(1_000_003)
    return [picture(rng) for _ in range(count)]


def share_right(package: Path, shown: Sequence[Picture]) -> float:
    """Return the share of pictures of which a model says all words and no other."""
    right = 0
    with rdrr.load(package, backend="cpu", context=64) as model:
        for seen in shown:
            messages = [user(image_part(seen.image), text(QUESTION))]
            right += model.chat(messages, max_tokens=16, temperature=0).read() == seen.words
    return right / len(shown)


def test_pictures_never_seen_are_described_right(package: Path) -> None:
    assert share_right(package, pictures(SEEN)) >= RIGHT


def of_tokens(
    change: Callable[[np.ndarray], np.ndarray],
) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what plants a fault in the places of tokens in time, height and width."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = SeenImage.places.func
        patch.setattr(SeenImage, "places", property(lambda image: change(right(image))))

    return plant


def shifted(places: np.ndarray) -> np.ndarray:
    """Return places of which each is a column further to the right."""
    columns = (places[:, 2] + 1) % (places[:, 2].max() + 1)
    return np.stack([places[:, 0], places[:, 1], columns], axis=1)


def of_pixels(
    change: Callable[[np.ndarray], np.ndarray],
) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what plants a fault in the pixels of an image, [height, width, channels]."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = patches._normalized
        patch.setattr(patches, "_normalized", lambda pixels, values: right(change(pixels), values))

    return plant


FAULTS = {
    "rows and columns swapped": of_tokens(lambda places: places[:, [0, 2, 1]]),
    "positions shifted": of_tokens(shifted),
    "channels swapped": of_pixels(lambda pixels: pixels[..., ::-1]),
    "upside down": of_pixels(lambda pixels: pixels[::-1]),
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault.startswith("rows") else pytest.mark.thorough)
        for fault in FAULTS
    ],
)
def test_a_planted_fault_is_visible_in_words(
    package: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    FAULTS[fault](monkeypatch)
    assert share_right(package, pictures(WRONG)) < PLANTED
