"""Rules on `processor`: the sizes that it allows exist, and their patches become whole tokens."""

from __future__ import annotations

from collections.abc import Iterator

from rdrr_manifests.models import Processor, Video
from rdrr_manifests.models.processor import MAX_IMAGE_PIXELS
from rdrr_manifests.rules.subject import Finding, Rule, Subject

_NEEDS = {
    "pixel_bounds": ("min_pixels", "max_pixels"),
    "token_budget": ("max_tokens",),
    "fixed": ("height", "width"),
    "tiles": ("height", "width", "tiles"),
}
"""The fields that each kind of sizing reads."""


def processor_sizes(subject: Subject) -> Iterator[Finding]:
    """Check that the sizing has its fields, and that they allow an image of whole tokens."""
    processor = subject.manifest.processor
    if processor is None:
        return
    missing = [name for name in _NEEDS[processor.sizing] if getattr(processor, name) is None]
    for name in missing:
        alias = Processor.model_fields[name].alias
        message = f"sizing {processor.sizing} needs this field"
        yield Finding(f"processor.{alias}", message, "a value")
    if not missing:
        yield from _CHECKS[processor.sizing](processor)
    if processor.video is not None:
        yield from _video(processor, processor.video)


def _video(processor: Processor, video: Video) -> Iterator[Finding]:
    if processor.sizing != "pixel_bounds":
        message = "videos are read with bounds of their pixels only"
        yield Finding("processor.sizing", message, "pixel_bounds", processor.sizing)
    for name, least, most in (
        ("maxFrames", video.min_frames, video.max_frames),
        ("maxPixels", max(video.min_pixels, processor.side**2), video.max_pixels),
    ):
        if most < least:
            message = "no number lies within the bounds"
            yield Finding(f"processor.video.{name}", message, f"at least {least}", most)


def _pixel_bounds(processor: Processor) -> Iterator[Finding]:
    least = max(processor.min_pixels or 0, processor.side**2)
    if (processor.max_pixels or 0) < least:
        message = "no size lies within the bounds"
        yield Finding("processor.maxPixels", message, f"at least {least}", processor.max_pixels)


def _token_budget(processor: Processor) -> Iterator[Finding]:
    most = MAX_IMAGE_PIXELS // processor.side**2
    if (processor.max_tokens or 0) > most:
        message = f"images would have more than {MAX_IMAGE_PIXELS} pixels"
        yield Finding("processor.maxTokens", message, f"at most {most}", processor.max_tokens)


def _fixed(processor: Processor) -> Iterator[Finding]:
    height, width = processor.height or 0, processor.width or 0
    for name, length in (("height", height), ("width", width)):
        if length % processor.side:
            expected = f"a multiple of patchSize * mergeSize = {processor.side}"
            yield Finding(f"processor.{name}", "patches make no whole tokens", expected, length)
    if height * width > MAX_IMAGE_PIXELS:
        yield Finding(
            "processor.height",
            "height and width make too many pixels",
            f"at most {MAX_IMAGE_PIXELS}",
            height * width,
        )


def _tiles(processor: Processor) -> Iterator[Finding]:
    yield from _fixed(processor)
    longest = processor.tiles.longest_side if processor.tiles is not None else 1
    # Both sides are at most the longest one and what fills up the last tile.
    height, width = (longest + (side or 1) - 1 for side in (processor.height, processor.width))
    if height * width > MAX_IMAGE_PIXELS:
        message = "tiles of this size make too many pixels"
        expected = f"at most {MAX_IMAGE_PIXELS} of an image"
        yield Finding("processor.tiles.longestSide", message, expected, longest)


_CHECKS = {
    "pixel_bounds": _pixel_bounds,
    "token_budget": _token_budget,
    "fixed": _fixed,
    "tiles": _tiles,
}

RULES = (Rule("processor-sizes", processor_sizes, needs=("processor",)),)
