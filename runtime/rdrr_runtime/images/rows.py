"""The tokens of images in a sequence: ids behind the vocabulary, whose rows are features.

An image extends the vocabulary: each of its tokens gets an id of its own behind the ids of text. So
sequences are lists of ids whether they have images or not, and two of them have the same beginning
exactly if their texts and their images are the same. Features are known by their content, so an
image that was seen before has the ids that it had then.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError
from rdrr_manifests.graph.ops import Embed
from rdrr_manifests.package import Package

from rdrr_runtime.images.tower import ImageFeatures

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
SeenWhole = Literal["all", "sliding"]

MOST_BYTES = 1 << 30
"""Bytes of features kept for later prompts: 16 images of 1,024 tokens for a model of 8B."""


@dataclass(frozen=True)
class SeenImage:
    """An image with the ids of its tokens, which follow each other.

    Attributes:
        first: Id of its first token.
        features: What stands in place of its tokens.
    """

    first: int
    features: ImageFeatures

    @property
    def ids(self) -> range:
        """The ids of its tokens."""
        return range(self.first, self.first + len(self.features.embeddings))

    @property
    def size(self) -> int:
        """Bytes of its features."""
        return self.features.embeddings.nbytes * (1 + len(self.features.taps))

    @cached_property
    def places(self) -> I64:
        """Place of each token in time, height and width, int64 [tokens, 3]."""
        return np.indices(self.features.grid).reshape(3, -1).T.astype(np.int64)


class PromptIds(list[int]):
    """The ids of a prompt, which hold its images: those are not forgotten as long as it exists."""

    def __init__(self, ids: Sequence[int], images: Sequence[SeenImage]) -> None:
        super().__init__(ids)
        self.images = tuple(images)


Run = tuple[int, int, SeenImage, int]
"""Rows of a pass that are tokens of an image: first row, count, image, its first token there."""


def _dense(runs: Sequence[Run], parts: int, count: int, width: int) -> F32:
    """Return the features of the rows of runs among `count` rows, [parts, rows, width]."""
    rows = np.zeros((parts, count, width), np.float32)
    for at, length, image, start in runs:
        for part, values in zip(rows, image.features.parts, strict=True):
            part[at : at + length] = values[start : start + length]
    return rows


class SeenImages:
    """The images that a model has seen, by the ids of their tokens.

    Args:
        first: The id behind those of text.
        taps: Layers after which features are added, see `ImageFeatures.taps`.
        width: Hidden size of the text model.
        seen_whole: See `Vision.seen_whole`.
        has_axes: Whether the position of a token of an image counts in time, height and width; if
            not, it is that of its slot, as for text.
    """

    def __init__(
        self,
        first: int,
        taps: int,
        width: int,
        *,
        seen_whole: SeenWhole | None = None,
        has_axes: bool = True,
    ) -> None:
        self.first, self.taps, self.width, self.has_axes = first, taps, width, has_axes
        self._seen_whole = seen_whole
        self._next = first
        self._images: list[SeenImage] = []
        self._by_content: dict[bytes, SeenImage] = {}
        self._last_use: dict[int, int] = {}
        self._uses = itertools.count()
        self._held = WeakValueDictionary[int, SeenImage]()

    def add(self, features: ImageFeatures, key: bytes | None = None) -> range:
        """Return the ids of the tokens of an image, the same for the same features.

        Args:
            features: The features.
            key: Digest of what they follow from; that of the features themselves when None.
        """
        key = features.digest if key is None else key
        if key not in self._by_content:
            image = self._by_content[key] = SeenImage(self._next, features)
            self._images.append(image)
            self._next = image.ids.stop
        self.use(self._by_content[key].first)
        return self._by_content[key].ids

    def use(self, token: int) -> None:
        """Note that the image of a token is used now, so that others are forgotten before it."""
        self._last_use[self.of(token).first] = next(self._uses)

    def held(self, ids: Sequence[int]) -> PromptIds:
        """Return ids that hold their images.

        Raises:
            GenerationError: An image is forgotten.
        """
        return PromptIds(ids, [image for _, _, image, _ in self.runs(ids)])

    def forget(self, most: int = MOST_BYTES) -> None:
        """Forget images until the features of the others take at most `most` bytes.

        Those that were not used for longest are forgotten first. What a prompt holds is forgotten
        with it.
        """
        while self._images and sum(image.size for image in self._images) > most:
            first = min(self._last_use, key=lambda first: self._last_use[first])
            del self._last_use[first]
            self._held[first] = self.of(first)
            self._images = [image for image in self._images if image.first != first]
            self._by_content = {k: v for k, v in self._by_content.items() if v.first != first}

    def knows(self, token: int) -> bool:
        """Return whether an id is that of a token of an image."""
        return self._find(token) is not None

    def of(self, token: int) -> SeenImage:
        """Return the image that a token belongs to.

        Raises:
            GenerationError: The image is forgotten.
        """
        image = self._find(token)
        if image is None:
            raise GenerationError("an image of the prompt is forgotten", hint="ask again")
        return image

    def _find(self, token: int) -> SeenImage | None:
        if token < self.first:
            return None
        at = bisect_right(self._images, token, key=lambda image: image.first)
        image = self._images[at - 1] if at else None
        if image is not None and token in image.ids:
            return image
        return next((image for image in self._held.values() if token in image.ids), None)

    def are_seen_whole(self, window: int | None) -> bool:
        """Return whether rows of an image attend to all of it, in layers with such a window."""
        return self._seen_whole == "all" or (self._seen_whole == "sliding" and bool(window))

    def border(self, ids: Sequence[int], begin: int, end: int) -> int:
        """Return where a part of `ids` from `begin` on ends, at `end` unless that cuts an image.

        It then ends before the image; behind it if the part begins with the image. Images are only
        cut where their rows do not attend to later ones.
        """
        if self._seen_whole is None or end >= len(ids) or ids[end] < self.first:
            return end
        image = self.of(ids[end])
        start = end - (ids[end] - image.first)
        return start if begin < start else start + len(image.ids)

    def parts(self, ids: Sequence[int], most: int) -> Iterator[Sequence[int]]:
        """Yield ids in parts that follow each other, of up to `most` if no image is longer."""
        begin = 0
        while begin < len(ids):
            end = self.border(ids, begin, begin + most)
            yield ids[begin:end]
            begin = end

    def features(self, ids: Sequence[int]) -> F32:
        """Return the features of rows, float32 [1 + taps, rows, width]; zeros for text."""
        return _dense(self.runs(ids), 1 + self.taps, len(ids), self.width)

    def ends(self, ids: Sequence[int], base: int) -> I64:
        """Return the slot behind the image of each row from slot `base` on; 0 for text.

        Raises:
            GenerationError: An image is cut whose rows attend to all of it.
        """
        ends = np.zeros(len(ids), np.int64)
        for at, count, image, start in self.runs(ids):
            if self._seen_whole is not None and count < len(image.ids):
                raise GenerationError(
                    "the tokens of an image must run in one pass",
                    expected=f"all {len(image.ids)} tokens",
                    found=count,
                )
            ends[at : at + count] = base + at - start + len(image.ids)
        return ends

    def runs(self, ids: Sequence[int]) -> list[Run]:
        """Return the parts of images among rows: row, count, image, and its first token there."""
        runs, at = list[Run](), 0
        for index in np.flatnonzero(np.asarray(ids) >= self.first).tolist():
            if index < at:
                continue
            image = self.of(ids[index])
            start = ids[index] - image.first
            same = (token == ids[index] + more for more, token in enumerate(ids[index:]))
            most = min(len(image.ids) - start, len(ids) - index)
            count = next((more for more, is_next in enumerate(same) if not is_next), most)
            at = index + min(count, most)
            runs.append((index, at - index, image, start))
        return runs


@dataclass(frozen=True)
class PassImages:
    """What a pass over rows of images and of text needs besides their ids.

    Attributes:
        is_image: Whether a row is a token of an image, [rows].
        runs: The rows of images. A large image has a hundred megabytes of features, so they are
            copied only where they are needed.
        positions: Positions of each row in time, height and width, int64 [rows, 3].
        ends: The slot behind the image of each row, int64 [rows]; 0 for text.
        images: The images that the model has seen.
    """

    is_image: npt.NDArray[np.bool_]
    runs: Sequence[Run]
    positions: I64
    ends: I64
    images: SeenImages

    @property
    def features(self) -> F32:
        """Features of each row, float32 [1 + taps, rows, width]; zeros for text."""
        if not self.runs:
            return np.zeros((0, len(self.is_image), 0), np.float32)
        parts = self.runs[0][2].features.parts
        return _dense(self.runs, len(parts), len(self.is_image), parts[0].shape[1])


@dataclass
class SequencePositions:
    """The positions of the tokens of a sequence, which images make differ from their slots.

    A token of an image has three positions, in time, height and width, which count from that of its
    first token. The text behind it goes on after the largest of them. Without `has_axes` positions
    are slots.

    Attributes:
        images: The images.
        marks: For each image of the sequence, the slot behind it, and by how much positions fall
            behind slots from there on.
    """

    images: SeenImages
    marks: list[tuple[int, int]] = field(default_factory=list)

    def of(self, ids: Sequence[int], base: int) -> I64:
        """Return the positions of ids from slot `base` on, int64 [ids, 3].

        What the sequence had in these slots before is forgotten.
        """
        self.rewind(base)
        behind = self.marks[-1][1] if self.marks else 0
        slots = np.arange(base, base + len(ids), dtype=np.int64)
        positions = np.repeat(slots[:, None] - behind, 3, axis=1)
        if not self.images.has_axes:
            return positions
        for at, count, image, start in self.images.runs(ids):
            first = base + at - start - behind
            end = at + count
            positions[at:end] = first + image.places[start : start + count]
            if start + count == len(image.ids):
                behind = base + end - (first + max(image.features.grid[1:]))
                self.marks.append((base + end, behind))
                positions[end:] = slots[end:, None] - behind
        return positions

    def of_pass(self, ids: Sequence[int], base: int) -> PassImages | None:
        """Return what a pass over ids needs; None if slots are positions and no row is an image."""
        self.rewind(base)
        is_image = np.asarray(ids) >= self.images.first
        if not self.marks and not is_image.any():
            return None
        runs, ends = self.images.runs(ids), self.images.ends(ids, base)
        return PassImages(is_image, runs, self.of(ids, base), ends, self.images)

    def rewind(self, base: int) -> None:
        """Forget what the sequence has from a slot on."""
        while self.marks and self.marks[-1][0] > base:
            self.marks.pop()

    def copy_from(self, other: SequencePositions, slots: int) -> None:
        """Take the first slots of another sequence in place of those of this one."""
        self.marks = list(other.marks)
        self.rewind(slots)


def seen_images(package: Package) -> SeenImages | None:
    """Return the images that a loaded package has seen, none so far; None if it sees none."""
    vision, table = package.manifest.vision, package.graph.ops[0]
    if vision is None or not isinstance(table, Embed):
        return None
    # Beyond all tables, so that inputs of layers are those of token 0.
    tables = (table, *package.graph.further_tables)
    rows = max(package.graph.vocab_size, *(other.weight.shape[0] for other in tables))
    return SeenImages(
        rows,
        len(vision.taps),
        package.graph.hidden_size,
        seen_whole=vision.seen_whole,
        has_axes=any(rope.sections is not None for rope in package.graph.ropes),
    )
