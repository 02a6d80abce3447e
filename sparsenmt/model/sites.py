"""The names of the attention sites. Imports nothing heavy, so that the command line can offer them."""

from __future__ import annotations

from typing import Literal

SiteName = Literal["encoder_self", "decoder_self", "cross"]
SITES: tuple[SiteName, ...] = ("encoder_self", "decoder_self", "cross")
