"""What a program states for images: inputs of passes over their tokens, and the vision tower."""

from __future__ import annotations

from rdrr_manifests.models.vision import PositionSampling

from rdrr_runtime.program.amounts import Count, Index, ProgramModel, Size
from rdrr_runtime.program.dispatches import Phase


class ImageRope(ProgramModel):
    """A table of rotations with a row for each row of a pass, behind those of the context.

    Attributes:
        range: Index of its range.
        frequencies: Radians per position of each pair.
        factor: What cosines and sines are multiplied by.
        axes: The position that rotates each pair: 0 for time, 1 for height, 2 for width.
    """

    range: Index
    frequencies: tuple[float, ...]
    factor: float = 1.0
    axes: tuple[Count, ...]


class Images(ProgramModel):
    """What the host writes for the rows of a pass that are tokens of images.

    Attributes:
        first: The id from which on ids are those of tokens of images.
        features: Index of the range of the features of each part, f32 [rows, width].
        width: Values of a row of features, zeros behind those of the tower.
        ropes: The tables of rotations; none if positions of images are slots.
        whole: Whether rows of an image attend to all of it, so that it must run in one pass.
    """

    first: Index
    features: tuple[Index, ...]
    width: Size
    ropes: tuple[ImageRope, ...]
    whole: bool = False


class TowerStep(ProgramModel):
    """Where the host writes the rows of the parts of a tower: indices of ranges.

    Attributes:
        step: The records `step_header` and `step_row`.
        segments: A record `segment` for each row.
    """

    step: Index
    segments: Index


class TowerPart(ProgramModel):
    """Phases of a tower that run for the same number of rows.

    Attributes:
        phases: The phases.
        result: Index of the range of the result, f32 [tokens, width], if there is a row for each
            token; None if there is one for each patch.
    """

    phases: tuple[Phase, ...]
    result: Index | None = None


class Tower(ProgramModel):
    """A vision tower. The contexts of its program are numbers of patches.

    The results of the merged parts are the taps in their order, and then the embeddings. What the
    host writes for an image, by the index of its range:

    Attributes:
        patches: Values of the patches, f32 [patches, inputs].
        nearest: Rows of the position embedding around each patch, u32 [patches, 4].
        factors: Their factors, f32 [patches, 4].
        rope: Rotations of each patch, f32 [patches, pairs, 2], the first half of the pairs by its
            row and the second by its column; None if the tower has none.
        of_token: The first patch of each token and the one behind its last, u32 [tokens, 2]; None
            if no phase reads them.
        frequencies: Radians per row or column of each pair of a half.
        grid: Rows and columns of the position embedding.
        sampling: How it is read, see `Vision.position_sampling`.
        inputs: Values of a patch.
        merge: Rows and columns of the patches of a token.
        width: Values of a row of the results.
        patch_rows: Where the rows of patches are written.
        token_rows: Where those of tokens are.
        parts: The parts, in the order of execution.
    """

    patches: Index
    nearest: Index
    factors: Index
    rope: Index | None = None
    of_token: Index | None = None
    frequencies: tuple[float, ...] = ()
    grid: Size
    sampling: PositionSampling
    inputs: Size
    merge: Size
    width: Size
    patch_rows: TowerStep
    token_rows: TowerStep
    parts: tuple[TowerPart, ...]
