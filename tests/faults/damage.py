"""Damage at rest: every file that the program has written is cut, changed or removed, and then used."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.points import AVERAGE, USE_DATA, USE_MODEL
from tests.faults.reports import Finding, Report, first_line, refusal
from tests.faults.server import Result
from tests.faults.world import DECODE, PREPARE, TRAIN, Files, World, differences

FLIPS = 4
"""Bits that are flipped in a file, one after the other, in parts of equal size."""


@dataclass(frozen=True)
class Use:
    """A command that reads files of a state."""

    name: str
    start: str
    """The state that the command finds: see `world.STATES`."""
    files: str
    """Pattern of the files that are damaged."""
    arguments: list[str]
    repairs: bool = False
    """The damaged file itself has to be as it was when the command has ended well."""
    prints: bool = False
    """Standard output is the result."""


SCORE = ["score", "--model", "case/model", "--source", "corpus/test.en", "--target", "corpus/test.de"]
START_FROM = [*TRAIN, "directory=case/other", "training.max_updates=2", "--from", "case/model"]
_MODEL = r"model/(?!checkpoints/|metrics).*"

USES = [
    Use("train on prepared data", "prepared", r"prepared/.*", USE_DATA),
    Use("prepare again", "prepared", r"prepared/.*", PREPARE, repairs=True),
    Use("prepare, half done before", "half prepared", r".*", PREPARE, repairs=True),
    Use("train, resumed", "interrupted", r"model/.*", TRAIN),
    Use("train from another model", "trained", _MODEL, START_FROM),
    Use("decode", "model", _MODEL, USE_MODEL),
    Use("decode, half done before", "half decoded", r"output/.*", DECODE, repairs=True),
    Use("score", "model", _MODEL, SCORE, prints=True),
    Use("average", "model", r"model/.*", AVERAGE),
]


def damages(content: bytes, seed: int) -> Iterator[tuple[str, bytes | None]]:
    """What can become of a file: a name for the damage, and the new contents; None: it is gone."""
    size = len(content)
    yield "removed", None
    yield "a byte more", content + b"\x5a"
    for length in sorted({0, size // 2, size - 1} - {size, -1}):
        yield f"cut to {length} bytes", content[:length]
    generator = random.Random(seed)
    for number in range(FLIPS if size else 0):
        position = min(int((number + generator.random()) * size / FLIPS), size - 1)
        bit = generator.randrange(8)
        changed = bytes([content[position] ^ 1 << bit])
        yield f"bit {bit} of byte {position} flipped", content[:position] + changed + content[position + 1 :]


class Damage:
    """Damages files of one state, and uses them in one way."""

    def __init__(self, world: World, use: Use) -> None:
        self.world, self.use = world, use
        self.start = world.state(use.start)
        world.set(self.start)
        self.undisturbed = world.run(use.arguments)
        if self.undisturbed.code != 0:
            raise RuntimeError(f"{use.name}: {self.undisturbed.err}")
        self.expected = world.files()
        self.names = sorted(
            name for name in self.start if re.fullmatch(use.files, name) and name[-1] != "/" and ".lock" not in name
        )
        self.report = Report(use.name, points=len(self.names))

    def cases(self, seed: int = 1) -> list[tuple[str, str, bytes | None]]:
        """All of them: file, damage, new contents."""
        return [
            (name, damage, content)
            for number, name in enumerate(self.names)
            for damage, content in damages(self.start[name], seed * 1000 + number)
        ]

    def sample(self, count: int, seed: int) -> list[tuple[str, str, bytes | None]]:
        """Some of them."""
        return random.Random(seed).sample(self.cases(seed), count)

    def try_all(self, cases: list[tuple[str, str, bytes | None]]) -> Report:
        """Try cases, and report."""
        for name, damage, content in cases:
            files = {other: each for other, each in self.start.items() if other != name}
            self.world.set(files if content is None else {**files, name: content})
            result = self.world.run(self.use.arguments)
            self.report.add(f"{name} {damage}", self._judge(name, content is None, result, self.world.files()))
        self.report.cases += len(cases)
        return self.report

    def _judge(self, name: str, removed: bool, result: Result, after: Files) -> Iterator[Finding]:
        """It must be refused by its name, or have no influence on the result."""
        if result.code != 0:
            folder, _, file = name.rpartition("/")
            # Without a sound manifest a directory is not known for what it was: then it may be named itself.
            yield from refusal(
                result, f"case/{name}", *([f"case/{folder}"] if removed or file == "manifest.json" else [])
            )
            return
        found = {each: content for each, content in after.items() if "/damaged-" not in each}
        expected = self.expected
        if not self.use.repairs:
            found, expected = ({k: v for k, v in files.items() if k != name} for files in (found, expected))
        if changed := differences(expected, found):
            yield "wrong", f"it ended well, but the result differs: {changed[:4]}"
        if self.use.prints and result.out != self.undisturbed.out:
            yield "wrong", f"it printed something else: {result.out[-300:]}"
        aside = any("/damaged-" in each for each in after)
        if aside and name not in result.err and name.rpartition("/")[0] not in result.err:
            yield "other", f"it is skipped, but not named: {first_line(result.err)}"
