"""The tokens of images in the text of a conversation, where the template has its placeholders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from rdrr_format.errors import GenerationError
from rdrr_manifests.models import Processor

from rdrr_runtime.text.control_tokens import BEGIN, END

Layout = tuple[int, int, int] | tuple[int, tuple[float, ...]]
"""The fields of an `ImageLayout` or of a `VideoLayout`."""


class ImageLayout(NamedTuple):
    """What an image is in a prompt.

    Attributes:
        tokens: Tokens of a tile, and of the whole image.
        rows: Rows of tiles; 0 without tiles.
        columns: Columns of tiles.
    """

    tokens: int
    rows: int = 0
    columns: int = 0

    @property
    def total(self) -> int:
        """Tokens of the tiles and of the whole image."""
        return self.tokens * (self.rows * self.columns + 1)


class VideoLayout(NamedTuple):
    """What a video is in a prompt.

    Attributes:
        tokens: Tokens of the frames of a patch.
        seconds: Their time, for each patch.
    """

    tokens: int
    seconds: tuple[float, ...]

    @property
    def total(self) -> int:
        """Tokens of all frames."""
        return self.tokens * len(self.seconds)


class ImagePlaces:
    """Writes the tokens of images in place of placeholders.

    Marked text (see `control_tokens`) is a message's, which holds no placeholders.

    Args:
        processor: The recipe.
        layouts: `ImageLayout` of each image and `VideoLayout` of each video, in the order of the
            prompt.
    """

    def __init__(self, processor: Processor, layouts: Sequence[Layout]) -> None:
        self._processor = processor
        self._layouts = [
            ImageLayout(*layout) if len(layout) == 3 else VideoLayout(*layout) for layout in layouts
        ]
        self._places = 0
        video = processor.video
        places = [processor.placeholder, *([] if video is None else [video.placeholder])]
        self._pattern = re.compile(
            "|".join([f"{BEGIN}[^{BEGIN}{END}]*{END}", *map(re.escape, reversed(places))])
        )

    def filled(self, text: str) -> str:
        """Return a text, which follows those before, with the tokens of its images."""
        return self._pattern.sub(self._fill, text)

    def _fill(self, match: re.Match[str]) -> str:
        if match[0].startswith(BEGIN):
            return match[0]
        # A place without an image, or of another kind, is refused by `check`.
        layout = (self._layouts[self._places :] or [ImageLayout(0)])[0]
        is_video = match[0] != self._processor.placeholder
        self._places += 1
        if isinstance(layout, VideoLayout):
            return self._frames(layout) if is_video else ""
        return "" if is_video else self._tiles(layout) + self._tokens(layout)

    def _frames(self, layout: VideoLayout) -> str:
        video, token = self._processor.video, self._processor.token
        assert video is not None, "there is no other layout of a video"
        return "".join(
            video.before.replace("{seconds}", f"{seconds:.1f}")
            + token * layout.tokens
            + video.after
            for seconds in layout.seconds
        )

    def _tokens(self, layout: ImageLayout) -> str:
        processor = self._processor
        return f"{processor.before}{processor.token * layout.tokens}{processor.after}"

    def _tiles(self, layout: ImageLayout) -> str:
        tiles, token = self._processor.tiles, self._processor.token
        if tiles is None or not layout.rows:
            return ""
        text = ""
        for row, column in product(range(1, layout.rows + 1), range(1, layout.columns + 1)):
            before = tiles.before.replace("{row}", str(row)).replace("{column}", str(column))
            text += before + token * layout.tokens
            text += tiles.row_after if column == layout.columns else ""
        return text + tiles.after

    def check(self, ids: Sequence[int], token: Sequence[int]) -> None:
        """Check that each image has a place, and that no other text became a token of an image.

        Args:
            ids: Ids of the whole prompt.
            token: Ids of the token that stands for a part of an image; a package whose tokenizer
                knows it has one.

        Raises:
            GenerationError: There are more or fewer places than images, or other tokens of images.
        """
        if self._places != len(self._layouts):
            raise GenerationError(
                "the chat template does not have one place for each image",
                expected=f"{len(self._layouts)} times {self._processor.placeholder}",
                found=self._places,
                hint="change the messages, or use the template that belongs to the model",
            )
        count = ids.count(token[0]) if len(token) == 1 else None
        total = sum(layout.total for layout in self._layouts)
        if count != total:
            raise GenerationError(
                "the prompt has other tokens of images than its images need",
                expected=f"{total} times {self._processor.token}",
                found="no such token" if count is None else count,
                hint="change the messages",
            )
