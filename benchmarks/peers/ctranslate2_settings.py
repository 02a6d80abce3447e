"""The settings of CTranslate2 in words, for the lines of a benchmark."""

from __future__ import annotations

import os


def settings(workers: int) -> str:
    """Return the backend that the environment asks for, and the number of workers."""
    mkl = os.environ.get("CT2_USE_MKL")
    backend = {None: "its choice of backend", "0": "oneDNN", "1": "MKL"}[mkl]
    if mkl == "1":
        backend += " unpacked" if os.environ.get("CT2_PACKED_GEMM") == "0" else " packed"
    return f"{backend}, {workers} worker{'s' if workers > 1 else ''}"
