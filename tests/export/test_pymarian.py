"""Marian itself translates exported models as this program does: greedy outputs are the same.

Its Python is named by SPARSENMT_PYMARIAN_PYTHON, an environment with `pymarian==1.12.42` and PyYAML.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.export.model_export import export_model
from sparsenmt.export.target import FileChoices
from tests.export.support import LINES, make_bundle
from tests.importers.test_marian import translated

PYTHON = os.environ.get("SPARSENMT_PYMARIAN_PYTHON")
CODE = """
import json, sys, yaml
from pathlib import Path
from pymarian import Translator

folder, lines = Path(sys.argv[1]), json.loads(sys.argv[2])
settings = yaml.safe_load((folder / "decoder.yml").read_bytes())
files = {key: [str(folder / name) for name in settings[key]] for key in ("models", "vocabs")}
keys = ("beam-size", "normalize", "max-length-factor", "allow-unk", "mini-batch")
search = {key.replace("-", "_"): settings[key] for key in keys if key in settings}
found = Translator(**files, **search, cpu_threads=1, quiet=True).translate(lines)
Path(sys.argv[3]).write_text(json.dumps(found))
"""
_COMPARED = 24  # characters
SECTIONS: dict[str, dict[str, Any]] = {
    "norms first": {},
    "norms first, three tables, gelu": {"tie_embeddings": "none", "activation": "gelu"},
    "norms last": {"norm": "post"},
    "two vocabularies, silu": {"norm": "post", "tie_embeddings": "target", "activation": "silu"},
    "SSRU": {"recurrence": {"name": "ssru"}},
    "shared layers": {"norm": "post", "depth": {"name": "recurrent"}, "decoder_feed_forward": 32},
}


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="SPARSENMT_PYMARIAN_PYTHON does not name a Python with pymarian")
@pytest.mark.parametrize("file", ["npz", "bin"])
@pytest.mark.parametrize("name", SECTIONS)
def test_marian_translates_the_same(name: str, file: str, tmp_path: Path) -> None:
    search = {"method": "greedy", "max_length_factor": 3.0, "max_length_offset": 3}
    bundle = make_bundle(ending=4.0, decoding=search, **SECTIONS[name])
    export_model(bundle, tmp_path / "out", "marian", choices=FileChoices(file))
    lines = LINES[:12]
    arguments = [str(tmp_path / "out"), json.dumps(lines), str(tmp_path / "found.json")]
    subprocess.run([str(PYTHON), "-c", CODE, *arguments], check=True)
    ours, theirs = [each.text for each in translated(bundle, lines)], json.loads((tmp_path / "found.json").read_bytes())
    # Outputs of random weights may not end, and each program has its own longest one.
    assert [text[:_COMPARED] for text in ours] == [text[:_COMPARED] for text in theirs]
