"""Small suites of every format, written for the tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCES = ["The bank was wet.", "A dog that barks sleeps.", "The ball was long."]
CORRECT = ["Die Bank war nass.", "Ein Hund, der bellt, schläft.", "Der Ball war lang."]
WRONG = ["Das Ufer war nass.", "Ein Hund, der bellt, schlafen.", "Die Kugel war lang."]

LINGEVAL = [
    {
        "source": SOURCES[1],
        "reference": CORRECT[1],
        "origin": "invented2020.17",
        "errors": [
            {"type": "agreement", "contrastive": WRONG[1], "distance": 3, "frequency": 40},
            {"type": "polarity", "contrastive": "Kein Hund, der bellt, schläft."},
        ],
    },
    {
        "source": SOURCES[0],
        "reference": CORRECT[0],
        "origin": "invented2021.2",
        "errors": [{"type": "agreement", "contrastive": "Die Bank waren nass.", "distance": 16, "frequency": 2}],
    },
    {"source": "Nothing.", "reference": "Nichts.", "origin": "invented2021.3", "errors": []},
]

SENSES = [
    {
        "source": SOURCES[2],
        "reference": CORRECT[2],
        "ambig word": "ball",
        "sense": "Tanz",
        "origin": "tales",
        "errors": [
            {"contrastive": WRONG[2], "type": "word_sense", "replacement": "Kugel"},
            {"contrastive": "Der Ballen war lang.", "type": "word_sense", "replacement": "Ballen"},
        ],
    },
    {
        "source": SOURCES[0],
        "reference": CORRECT[0],
        "ambig word": "bank",
        "sense": "Geld",
        "origin": "news",
        "errors": [{"contrastive": WRONG[0], "type": "word_sense", "replacement": "Ufer"}],
    },
]

KEY = [
    "1\ttales\tschloss\tcastle castles palace\tlock locks",
    "2\tnews\tschloss\tlock locks\tcastle castles palace",
    "3\tnews\tbank\tbench\tbank banks",
]
TEXT = ["Das Schloss ist alt.", "Schlösser sind teuer.", "Die Bank war grün."]
REFERENCE = ["The castle and the castle-wall are old.", "LOCKS are dear.", "The seat was green."]
DOMAIN = ["schloss\tcastle castles palace\tout\t1\t9", "schloss\tlock locks\tin\t8\t2"]


def write(path: Path, lines: Sequence[str]) -> Path:
    """A text file, gzipped if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def write_json(path: Path, value: Any) -> Path:
    return write(path, json.dumps(value, indent=1, ensure_ascii=False).split("\n"))


def write_set(folder: Path, rows: slice = slice(None), suffix: str = "") -> Path:
    """A folder as in DistilLingEval."""
    for name, lines in (("src.en", SOURCES), ("tgt.correct.de", CORRECT), ("tgt.incorrect.de", WRONG)):
        write(folder / f"{name}{suffix}", lines[rows])
    return folder


def write_translation_suite(folder: Path, suffix: str = "") -> Path:
    """A translation suite as in MuCoW; the key."""
    parts = {"key": KEY, "text": TEXT, "ref": REFERENCE, "domain": DOMAIN}
    for name, lines in parts.items():
        write(folder / f"de-en.{name}.txt{suffix}", lines)
    return folder / f"de-en.key.txt{suffix}"
