"""The processor time of decoding with compiled kernels, where they are chosen by measurement, relative to PyTorch alone.

    python benchmarks/native_choice.py [CASE ...] [--repeats N]

Beam search with random weights and outputs of one length. Ratios are the seconds with SPARSENMT_NATIVE=0 over those
with kernels, on one thread: a kernel that is slower than PyTorch's operators must not be used, so that none is under
1 / 1.05. Processor time is counted, so that other programs disturb less.

native_*  kernels compiled for this processor
avx2_*    compiled for AVX2 only, as on a processor without AVX-512, where most attention is slower than PyTorch's
          (left out where the compiler does not know x86-64-v3)

The first line of each case names the classes that were measured, with the kernel's time over PyTorch's.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import Case, Side, run
from decode_vs_ctranslate2 import BASE
from sparsenmt.native.build import SWITCH

BAR = 1 / 1.05
WORKER = "workers/decode.py"
LARGE: dict[str, Any] = BASE | {
    "encoder_layers": 3,
    "decoder_layers": 3,
    "vocabulary": 8000,
    "threads": 1,
    "min_length": 0,
    "processor_time": True,
}
TINY = LARGE | {"dimension": 128, "feed_forward": 512, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
WORK: dict[str, dict[str, Any]] = {
    "short_sources": LARGE | {"sentences": 32},
    "one_by_one": LARGE | {"sentences": 4, "batch_sentences": 1},
    "30_queries": TINY | {"sentences": 128, "batch_sentences": 64, "source_length": 29},
    "long_sources": LARGE | {"sentences": 4, "batch_sentences": 4, "source_length": 399, "target_length": 30},
    "long_sources_tiny": TINY | {"sentences": 16, "batch_sentences": 8, "source_length": 399, "target_length": 30},
}

# -march=native, which the last option of the command would be, is replaced.
_COMPILER = """#!/bin/sh
for word; do
  shift
  [ "$word" = -march=native ] && word=-march=x86-64-v3
  set -- "$@" "$word"
done
exec c++ "$@"
"""


def compiled_for_avx2(folder: Path) -> dict[str, str]:
    """The environment in which kernels are compiled for AVX2, and kept in ``folder``."""
    compiler = folder / "c++"
    compiler.write_bytes(_COMPILER.encode())
    compiler.chmod(0o700)
    return {"CXX": str(compiler), "XDG_CACHE_HOME": str(folder)}


def cases(builds: Mapping[str, dict[str, str]]) -> list[Case]:
    """The cases of each build; by its prefix, the environment that it needs."""
    plain = Side(WORKER, work={"environment": {SWITCH: "0"}})
    return [
        Case(f"{prefix}_{name}", Side(WORKER, work={"environment": {SWITCH: "1"} | build}), plain, work, BAR)
        for prefix, build in builds.items()
        for name, work in WORK.items()
    ]


def main() -> int:
    os.environ.pop(SWITCH, None)
    with tempfile.TemporaryDirectory() as folder:
        builds: dict[str, dict[str, str]] = {"native": {}}
        if platform.machine() == "x86_64" and shutil.which("c++"):
            builds["avx2"] = compiled_for_avx2(Path(folder))
        return run("native_choice", str(__doc__), cases(builds), repeats=9)


if __name__ == "__main__":
    sys.exit(main())
