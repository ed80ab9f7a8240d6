"""The names of the runtimes that packages are made for. Nothing heavy is imported."""

from __future__ import annotations

from typing import Literal, get_args

ProfileName = Literal["rdrr", "doppler"]

DOPPLER: ProfileName = "doppler"
"""The public runtime; `rdrr_manifests.doppler` knows what it can load."""

PROFILE_NAMES: tuple[ProfileName, ...] = get_args(ProfileName)
