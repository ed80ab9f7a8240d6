"""Both hashes that packages call blake3, against vectors of their own implementations."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.doppler_blake3 import doppler_blake3_hex
from rdrr_format.integrity import hash_bytes

# Bytes i % 251 for i below the length; hashes from the reference library and from the public
# runtime's own function.
VECTORS = (
    (
        0,
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        "fda1200e7626ed65703a9c8eb28987d8142bf29fcf7cf582e0c44cc7ad8a8ea8",
    ),
    (
        1,
        "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
        "1103c1e16280c2008da4b71450ad5ad844b71a5e09df9c1948dfb83f4a77e0d9",
    ),
    (
        64,
        "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98",
        "69d0b52250aa4e600687b20755fea4ba76a9fc25490d015d33ded4c09f9e348a",
    ),
    (
        65,
        "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee",
        "b5ef4905c6aa739c7c0573dc76813e0b6ef2da83aafbc212bb4e30181783671f",
    ),
    (
        1024,
        "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
        "720a04b59cf6a8b148ca1f6ef8a3b2168077f2baf111197742bc6b17e2dbc694",
    ),
    (
        1025,
        "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
        "b74c0de1b15fd2449d0ca9d16e22a356275308cc3ca15c34659c6773168a5179",
    ),
    (
        3072,
        "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2",
        "bf894de697d5bd05f88aff863f6390ea42cb3e9af3754a4b8e3429ce2784f6e8",
    ),
    (
        5000,
        "ee78d92070de3df1c57c37002abf0a6b1a6589acdeef4d8ffac7cf3d9e8f2836",
        "50e05dabcded754fc3d7c842e079ea8455d693a99535cb82a3ca245517ba6033",
    ),
    (
        100000,
        "d93c23eedaf165a7e0be908ba86f1a7a520d568d2d13cde787c8580c5c72cc54",
        "3b207d347a892eba4b387a67c0f1c17d1bad7b50b2b986f8b955abf084dd5356",
    ),
)


@pytest.mark.parametrize(("length", "standard", "doppler"), VECTORS)
def test_both_variants_equal_their_reference_implementations(
    length: int, standard: str, doppler: str
) -> None:
    data = bytes(i % 251 for i in range(length))
    assert hash_bytes("blake3", data) == standard
    assert doppler_blake3_hex(data) == doppler


def test_one_changed_bit_anywhere_changes_the_hash(rng: np.random.Generator) -> None:
    data = rng.integers(0, 256, int(rng.integers(1, 9000)), dtype=np.uint8)
    changed = data.copy()
    changed[rng.integers(data.size)] ^= np.uint8(1 << rng.integers(8))
    assert doppler_blake3_hex(data) == doppler_blake3_hex(data.tobytes())
    assert doppler_blake3_hex(data) != doppler_blake3_hex(changed)
