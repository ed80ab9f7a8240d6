"""The tokens of images in the text of a conversation, where the template has its placeholders."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rdrr_format.errors import GenerationError
from rdrr_manifests.models import Processor

from rdrr_runtime.text.control_tokens import BEGIN, END


class ImagePlaces:
    """Writes the tokens of images in place of placeholders.

    Marked text (see `control_tokens`) is a message's, which holds no placeholders.

    Args:
        processor: The recipe.
        counts: Tokens of each image, in the order of the prompt.
    """

    def __init__(self, processor: Processor, counts: Sequence[int]) -> None:
        self._processor = processor
        self._counts = list(counts)
        self._places = 0
        self._pattern = re.compile(
            f"{BEGIN}[^{BEGIN}{END}]*{END}|{re.escape(processor.placeholder)}"
        )

    def filled(self, text: str) -> str:
        """Return a text, which follows those before, with the tokens of its images."""
        return self._pattern.sub(self._fill, text)

    def _fill(self, match: re.Match[str]) -> str:
        processor = self._processor
        if match[0] != processor.placeholder:
            return match[0]
        # A place without an image is refused by `check`.
        count = self._counts[self._places] if self._places < len(self._counts) else 0
        self._places += 1
        return f"{processor.before}{processor.token * count}{processor.after}"

    def check(self, ids: Sequence[int], token: Sequence[int]) -> None:
        """Check that each image has a place, and that no other text became a token of an image.

        Args:
            ids: Ids of the whole prompt.
            token: Ids of the token that stands for a part of an image; a package whose tokenizer
                knows it has one.

        Raises:
            GenerationError: There are more or fewer places than images, or other tokens of images.
        """
        if self._places != len(self._counts):
            raise GenerationError(
                "the chat template does not have one place for each image",
                expected=f"{len(self._counts)} times {self._processor.placeholder}",
                found=self._places,
                hint="change the messages, or use the template that belongs to the model",
            )
        count = ids.count(token[0]) if len(token) == 1 else None
        if count != sum(self._counts):
            raise GenerationError(
                "the prompt has other tokens of images than its images need",
                expected=f"{sum(self._counts)} times {self._processor.token}",
                found="no such token" if count is None else count,
                hint="change the messages",
            )
