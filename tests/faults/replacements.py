"""``python -m tests.faults.replacements [--tries N]``: replace a model directory while `decode` opens it.

Two models of the same shapes have different vocabularies and weights. A `decode` that ends with exit code 0 must have
translated with one of the two; any other translation is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.methods import load_resolved_recipe
from sparsenmt.assemble.model import build_model
from sparsenmt.cli import run
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.recipe.schema import Recipe

LINES = ["ba bu bay", "dib dax", "bad bid bud", "u a i u", "abba dada", "bubi dub"]
FILES = ("manifest.json", "recipe.yaml", "weights.safetensors", "tokenizers", "features")


def make_recipe() -> Recipe:
    """The recipe of both models."""
    corpus = {"source": "/a", "target": "/b"}
    sizes = {"dimension": 16, "feed_forward": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return load_resolved_recipe(
        {
            "name": "replaced",
            "directory": "unused",
            "model": {**sizes, "max_positions": 40},
            "data": {
                "directory": "unused",
                "train": [corpus],
                "dev": corpus,
                "tokenizer": {"kind": "char", "shared": True},
            },
            "decoding": {"beam_size": 2, "max_length_factor": 0.0, "max_length_offset": 8, "min_length": 4},
        }
    )


def write_model(directory: Path, lines: Sequence[str], seed: int) -> None:
    """A model directory with an untrained model and the characters of the lines as its vocabulary."""
    recipe = make_recipe()
    tokenizer = train_tokenizer(recipe.data.tokenizer, lines)
    model_directory.initialise(
        directory, recipe, Tokenizers(tokenizer, tokenizer, True), FeatureSet({}), f"fingerprint {seed}"
    )
    model = build_model(recipe.model, source_size=tokenizer.size, target_size=tokenizer.size, seed=seed)
    model_directory.write_weights(directory, model.state_dict(), after=1, made_of=[1])


class Campaign:
    """The two models, and the one directory that is named on the command line.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.named = folder, folder / "named"
        self.models = [folder / "one", folder / "two"]
        # As many characters, but some others, so that the same ids stand for other characters.
        other = [line.replace("x", "k").replace("y", "l") for line in LINES]
        for seed, (path, lines) in enumerate(zip(self.models, (LINES, other), strict=True), start=1):
            write_model(path, lines, seed)
        (folder / "input").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
        self.expected = []
        for path in self.models:
            code, text = self.wait(self.decode(path))
            assert code == 0 and text, "the models translate"
            self.expected.append(text)
        assert self.expected[0] != self.expected[1]

    def decode(self, model: Path) -> int:
        """Start `decode` in a child process; returns its id."""
        (self.folder / "output").unlink(missing_ok=True)
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            output = str(self.folder / "output")
            code = run(
                ["decode", str(model), "--input", str(self.folder / "input"), "--output", output, "--threads", "1"]
            )
        finally:
            os._exit(code)

    def wait(self, child: int) -> tuple[int, str]:
        """Exit code and output of `decode`."""
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output = self.folder / "output"
        return code, output.read_text(encoding="utf-8") if output.exists() else ""

    def reset(self) -> None:
        """Make the directory a copy of the first model, and put a copy of the second one beside it."""
        if self.named.is_symlink():
            self.named.unlink()
        for path, model in ((self.named, self.models[0]), (self.folder / "new", self.models[1])):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(model, path)
        shutil.rmtree(self.folder / "aside", ignore_errors=True)

    def rename(self, pause: Callable[[], None]) -> None:
        """Move the directory away and the new one into its place."""
        self.named.rename(self.folder / "aside")
        (self.folder / "new").rename(self.named)

    def rename_back(self, pause: Callable[[], None]) -> None:
        """The same, and back."""
        self.rename(pause)
        pause()
        self.named.rename(self.folder / "new")
        (self.folder / "aside").rename(self.named)

    def copy_files(self, pause: Callable[[], None]) -> None:
        """Replace file after file, each at once."""
        for name in random.sample(FILES, len(FILES)):
            source = self.folder / "new" / name
            inner = [source] if source.is_file() else sorted(source.iterdir())
            for path in inner:
                os.replace(path, self.named / path.relative_to(self.folder / "new"))
            pause()

    def overwrite(self, pause: Callable[[], None]) -> None:
        """Write file after file in place, as `cp -r` does."""
        for name in random.sample(FILES, len(FILES)):
            for path in sorted((self.folder / "new" / name).rglob("*")) or [self.folder / "new" / name]:
                if path.is_file():
                    shutil.copyfile(path, self.named / path.relative_to(self.folder / "new"))
            pause()

    def weights(self, pause: Callable[[], None]) -> None:
        """Copy only the other model's weights in."""
        os.replace(self.folder / "new/weights.safetensors", self.named / "weights.safetensors")

    def switch(self, pause: Callable[[], None]) -> None:
        """Turn a link to the other model."""
        (self.folder / "turned").symlink_to(self.folder / "new")
        os.replace(self.folder / "turned", self.named)

    def attempt(self, replacement: Callable[[Callable[[], None]], None], seconds: float) -> str:
        """Replace the directory once at a random time of the opening; returns what became of it."""
        self.reset()
        if replacement == self.switch:
            self.named.rename(self.folder / "aside")
            self.named.symlink_to(self.folder / "aside")
        child = self.decode(self.named)
        time.sleep(random.uniform(0, seconds))
        replacement(lambda: time.sleep(random.uniform(0, seconds / 5)))
        code, text = self.wait(child)
        if code == 0:
            return {self.expected[0]: "old", self.expected[1]: "new"}.get(text, "WRONG")
        return "refused" if code == 2 and not text else f"WRONG (exit code {code})"


def campaign(folder: Path, tries: int, seed: int = 1) -> Counter[tuple[str, str]]:
    """Replace a directory many times; returns how often each kind of replacement had each result."""
    random.seed(seed)
    torch.set_num_threads(1)
    work = Campaign(folder)
    began = time.perf_counter()
    assert work.wait(work.decode(work.models[0]))[0] == 0
    seconds = time.perf_counter() - began
    kinds = (work.rename, work.rename_back, work.copy_files, work.overwrite, work.weights, work.switch)
    found: Counter[tuple[str, str]] = Counter()
    for number in range(tries):
        kind = kinds[number % len(kinds)]
        found[kind.__name__, work.attempt(kind, seconds)] += 1
    return found


def main() -> int:
    """Return the exit code: 1 if a translation was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.replacements", description=__doc__)
    parser.add_argument("--tries", type=int, default=500, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = campaign(Path(name), arguments.tries, arguments.seed)
    for (kind, result), count in sorted(found.items()):
        print(f"{kind:12} {result:24} {count:5}")
    wrong = sum(count for (_, result), count in found.items() if result.startswith("WRONG"))
    print(f"{wrong} of {arguments.tries} replacements gave a wrong translation or another failure than a message")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
