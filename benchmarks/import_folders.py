"""Folders of Transformers with odd but legal settings: what Transformers makes of them, for `tests/importers`.

Writes ``tests/importers/golden-folders.json``: the ids of lines and the outputs of each folder of
``tests/importers/odd_folders.py`` that can be imported. Ends with one JSON line.

    python benchmarks/import_folders.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.environments import PEERS, python_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.importers.odd_folders import FAMILIES, FOLDERS, HERE

WORKER = Path(__file__).parent / "peers" / "transformers_folders.py"


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        asked = []
        for number, (name, odd) in enumerate(FOLDERS.items()):
            if odd.refused or odd.like:
                continue
            path = Path(temporary) / str(number)
            odd.write(path)
            kind = FAMILIES[odd.family]["class"]
            if (path / "tokenizer.json").exists():
                kind = "PreTrainedTokenizerFast"
            asked.append(
                {"name": name, "path": str(path), "class": kind, "languages": odd.languages, "lines": odd.lines}
            )
        done = subprocess.run(
            [str(python_of("folders")), str(WORKER)], input=json.dumps(asked).encode(), check=True, capture_output=True
        )
    found = json.loads(done.stdout)
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(result)}" for name, result in found.items())
    source = json.dumps(" ".join(PEERS["folders"]))
    (HERE / "golden-folders.json").write_bytes(f'{{"source": {source}, "folders": {{\n{rows}\n}}}}\n'.encode())
    wrong = [f"{name}: {result['error']}" for name, result in found.items() if "error" in result]
    print("\n".join(wrong))
    print(json.dumps({"name": "import_folders", "folders": len(found), "errors": len(wrong)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
