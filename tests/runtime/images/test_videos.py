"""Videos are frames that are chosen, resized and cut as transformers does for Qwen 3 VL."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rdrr_format.errors import GenerationError, RdrrError, UsageError
from rdrr_runtime.images import decode, frames
from rdrr_runtime.images.frames import open_frames
from rdrr_runtime.images.patches import image_patches
from rdrr_runtime.images.prompt import read_images
from rdrr_runtime.images.sizes import video_size
from rdrr_runtime.images.sources import VideoSource, take_images
from rdrr_runtime.images.video import ChosenFrames, chosen_frames, video_patches
from rdrr_runtime.text.image_places import ImagePlaces
from support.images import QWEN, SEES_VIDEOS, VIDEO, drawn_image
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
    Qwen3VLVideoProcessor,
    smart_resize,
)
from transformers.video_utils import VideoMetadata

PICTURES = [drawn_image(70, 50).rotate(30 * turn) for turn in range(5)]


def file_of(kind: str = "PNG", images: list[Image.Image] = PICTURES, **options: Any) -> bytes:
    buffer = BytesIO()
    images[0].save(buffer, kind, save_all=kind != "PNG", append_images=images[1:], **options)
    return buffer.getvalue()


def as_files(images: list[Image.Image] = PICTURES) -> tuple[bytes, ...]:
    return tuple(file_of(images=[image]) for image in images)


@pytest.mark.parametrize(
    ("total", "rate"), [(2, 1.0), (5, 24.0), (40, 25.0), (41, 10.0), (300, 29.97), (9, 0.5)]
)
def test_the_frames_that_are_taken_are_those_of_transformers(total: int, rate: float) -> None:
    judge = SimpleNamespace(fps=2, num_frames=None, min_frames=4, max_frames=16)
    metadata = VideoMetadata(total_num_frames=total, fps=rate)
    expected = Qwen3VLVideoProcessor.sample_frames(judge, metadata)
    assert list(chosen_frames(VIDEO, total, rate).numbers) == expected.tolist()


def test_frames_have_the_size_that_transformers_gives_them(rng: np.random.Generator) -> None:
    for _ in range(200):
        height, width = (int(length) for length in rng.integers(8, 400, 2))
        count = int(rng.integers(2, 17))
        expected = smart_resize(
            count, height, width, 2, 32, min_pixels=VIDEO.min_pixels, max_pixels=VIDEO.max_pixels
        )
        assert video_size(SEES_VIDEOS, count, (height, width)) == expected
    with pytest.raises(GenerationError, match="too narrow"):
        video_size(SEES_VIDEOS, 4, (1, 3000))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_patches_are_those_of_transformers(rng: np.random.Generator, count: int) -> None:
    pixels = [rng.integers(0, 256, (64, 96, 3), np.uint8) for _ in range(count)]
    scaled = (np.stack(pixels) / 255 - np.array(QWEN.mean)) / np.array(QWEN.deviation)
    video = torch.from_numpy(scaled.astype(np.float32)).permute(0, 3, 1, 2)[None]
    expected, *grid = Qwen3VLVideoProcessor.patchify(None, video, 16, 2, 2)
    parts = video_patches(SEES_VIDEOS, pixels)
    assert [part.grid for part in parts] == [(1, *grid[1:])] * grid[0]
    patches = np.concatenate([part.patches for part in parts])
    np.testing.assert_allclose(patches, expected[0].numpy(), atol=1e-5, rtol=0)


def test_a_video_of_one_image_has_the_patches_of_the_image() -> None:
    image = drawn_image(64, 96)
    (part,) = video_patches(SEES_VIDEOS, [np.asarray(image)] * 2)
    np.testing.assert_array_equal(part.patches, image_patches(QWEN, image).patches)


@pytest.mark.parametrize("numbers", [(0, 8, 16, 24), (0, 10, 21)])
def test_the_text_around_frames_is_that_of_transformers(numbers: tuple[int, ...]) -> None:
    chosen = ChosenFrames(numbers, 25.0)
    judge = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        video_token=QWEN.token,
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
    )
    judge._calculate_timestamps = Qwen3VLProcessor._calculate_timestamps.__get__(judge)
    inputs = {
        "video_grid_thw": np.array([[2, 4, 6]]),
        "video_metadata": [SimpleNamespace(fps=25.0, frames_indices=list(numbers))],
    }
    expected = Qwen3VLProcessor.replace_video_token(judge, inputs, 0)
    layouts = [(4, 0, 0), (6, chosen.seconds(2))]
    places = ImagePlaces(SEES_VIDEOS, layouts)
    text = places.filled(f"a{QWEN.placeholder}b{VIDEO.placeholder}c")
    assert text == f"a{QWEN.token * 4}b{expected}c"
    places.check([7] * (4 + 2 * 6), [7])


def test_a_place_of_another_kind_is_refused() -> None:
    for layout, place in (((4, 0, 0), VIDEO.placeholder), ((4, (0.5,)), QWEN.placeholder)):
        places = ImagePlaces(SEES_VIDEOS, [layout])
        ids = [7] * places.filled(place).count(QWEN.token)
        with pytest.raises(GenerationError, match="other tokens of images"):
            places.check(ids, [7])


def test_lists_folders_and_animations_are_the_same_video(tmp_path: Path) -> None:
    for number, content in enumerate(as_files()):
        (tmp_path / f"{number}.png").write_bytes(content)
    lossless = file_of("WEBP", duration=100, lossless=True)
    sources = [
        VideoSource(as_files(), 10.0),
        VideoSource(str(tmp_path), 10.0),
        VideoSource(tmp_path, 10),
        VideoSource(lossless, None),
        VideoSource(lossless, 10.0),
    ]
    opened = [open_frames(source, "video") for source in sources]
    assert {(video.count, video.rate, video.size) for video in opened} == {(5, 10.0, (70, 50))}
    for number, picture in enumerate(PICTURES):
        for video in opened:
            np.testing.assert_array_equal(video.read(number), picture)
    gif = open_frames(VideoSource(file_of("GIF", duration=50), None), "video")
    assert (gif.count, gif.rate) == (5, 20.0)
    assert gif.read(3).mode == "RGB"


def test_a_prompt_reads_videos_and_images_in_its_order() -> None:
    said = [
        {"type": "video", "video": list(as_files()), "fps": 2},
        {"type": "image", "image": as_files()[0]},
    ]
    (message,), sources = take_images([{"role": "user", "content": said}])
    assert message["content"] == [{"type": "video"}, {"type": "image"}]
    read = read_images(SEES_VIDEOS, sources, max_tokens=200)
    (tokens, seconds), image = read.layouts
    assert seconds == (0.25, 1.25, 2.0)
    assert image[1:] == (0, 0)
    assert [len(part.patches) // 4 for part in read.patches] == [tokens] * 3 + [image[0]]
    with pytest.raises(GenerationError, match=r"the video needs \d+ tokens, of 5 frames at"):
        read_images(SEES_VIDEOS, sources, max_tokens=5)
    with pytest.raises(GenerationError, match="does not see videos"):
        read_images(QWEN, sources, max_tokens=200)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"video": []}, "without frames"),
        ({}, "without frames"),
        ({"video": [3]}, "without frames"),
        ({"video": list(as_files()), "fps": 0}, "`fps` of a video is not a rate"),
        ({"video": list(as_files()), "fps": "2"}, "`fps` of a video is not a rate"),
        ({"video": list(as_files()), "fps": float("nan")}, "`fps` of a video is not a rate"),
        ({"video": list(as_files())}, "how many frames of the video a second has"),
        ({"video": list(as_files()[:1]), "fps": 1}, "two frames or more"),
        ({"video": as_files()[0], "fps": 1}, "two frames or more"),
        ({"video": [as_files()[0], file_of(images=[drawn_image(9, 9)])], "fps": 1}, "one size"),
        ({"video": file_of("GIF", duration=100)[:-900]}, "cannot be read"),
        ({"video": b"nothing", "fps": 1}, "no image that is read"),
        ({"video": file_of("GIF", duration=0)}, "how many frames of the video a second has"),
        ({"video": "DATA:image/gif;base64,AAAA", "fps": 1}, "no image that is read"),
    ],
)
def test_what_is_no_video_is_refused(part: dict[str, Any], message: str) -> None:
    def read() -> None:
        _, sources = take_images([{"role": "user", "content": [{"type": "video", **part}]}])
        read_images(SEES_VIDEOS, sources, max_tokens=200)

    with pytest.raises(RdrrError, match=message):
        read()


def test_videos_of_too_many_frames_or_pixels_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = file_of("GIF", duration=100)
    monkeypatch.setattr(decode, "MAX_ANIMATED_PIXELS", 5 * 70 * 50)
    open_frames(VideoSource(content, None), "video")
    monkeypatch.setattr(decode, "MAX_ANIMATED_PIXELS", 5 * 70 * 50 - 1)
    with pytest.raises(GenerationError, match=r"too many frames.*at most 4.*found 5"):
        open_frames(VideoSource(content, None), "video")
    monkeypatch.setattr(frames, "MAX_FRAMES", 4)
    with pytest.raises(GenerationError, match="too many frames"):
        open_frames(VideoSource(as_files(), 1.0), "video")
    with pytest.raises(GenerationError, match="no frames"):
        open_frames(VideoSource(tmp_path, 1.0), "video")


def test_no_path_is_read_where_none_is_allowed(tmp_path: Path) -> None:
    for source in (str(tmp_path), [str(tmp_path / "a.png")]):
        part = {"type": "video", "video": source, "fps": 1}
        _, sources = take_images([{"role": "user", "content": [part]}])
        with pytest.raises(UsageError, match="only data URLs"):
            read_images(SEES_VIDEOS, sources, max_tokens=200, files=False)
