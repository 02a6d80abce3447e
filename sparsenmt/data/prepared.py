"""The directory that `prepare` writes: its layout, its manifest, and reading it.

``manifest.json``     settings, hashes of the input files, sizes and hashes of every other file, counts, fingerprint
``tokenizers/``       `Tokenizers.save`
``features/``         `FeatureSet.save`
``train-N/``          one `Dataset` for each training corpus, in the recipe's order
``dev/``              the validation `Dataset`; ``dev.source.txt`` and ``dev.target.txt`` are its raw text
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparsenmt.data.features import FeatureSet
from sparsenmt.data.filters import FilterCounts
from sparsenmt.data.store import Dataset
from sparsenmt.data.text import read_parallel
from sparsenmt.data.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.files import read_json, sha256_file, sha256_text, write_json

FORMAT = 1
"""Version of the layout; other versions are not read."""

MANIFEST = "manifest.json"
DEV_TEXT = ("dev.source.txt", "dev.target.txt")
_HINT = "Run `sparsenmt prepare` with the recipe."


@dataclass(frozen=True)
class CorpusReport:
    """What became of one corpus. Tokens include EOS."""

    name: str
    weight: float
    counts: FilterCounts
    source_tokens: int
    target_tokens: int

    def describe(self) -> str:
        """One line for people."""
        counts = self.counts
        parts = [f"{self.name}: {counts.kept:,} of {counts.read:,} pairs kept"]
        parts += [f"{count:,} removed by {reason}" for reason, count in counts.removed.items() if count]
        if counts.cut:
            parts.append(f"{counts.cut:,} sources cut")
        parts.append(f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens")
        return ", ".join(parts)


@dataclass(frozen=True)
class PreparedReport:
    """What `prepare` did."""

    directory: Path
    up_to_date: bool
    """True: the data were there already, and nothing was written."""
    corpora: list[CorpusReport]
    dev: CorpusReport
    vocabulary_sizes: tuple[int, int]
    """Pieces of the source and of the target vocabulary."""
    shared: bool
    """Whether the two are one."""
    fingerprint: str

    @classmethod
    def from_manifest(cls, directory: Path, manifest: Mapping[str, Any], *, up_to_date: bool) -> PreparedReport:
        """The report on the data that a manifest describes."""
        source_size, target_size = manifest["vocabulary_sizes"]
        return cls(
            directory=directory,
            up_to_date=up_to_date,
            corpora=[_corpus_report(entry) for entry in manifest["corpora"]],
            dev=_corpus_report(manifest["dev"]),
            vocabulary_sizes=(source_size, target_size),
            shared=manifest["settings"]["tokenizer"]["shared"],
            fingerprint=manifest["fingerprint"],
        )

    def describe(self) -> str:
        """Several lines for people."""
        source_size, target_size = self.vocabulary_sizes
        sizes = f"{source_size:,} shared" if self.shared else f"{source_size:,} source and {target_size:,} target"
        return "\n".join(
            [
                *(report.describe() for report in (*self.corpora, self.dev)),
                f"vocabulary: {sizes} pieces",
                f"{self.directory}: {'up to date' if self.up_to_date else 'written'}",
            ]
        )


def _corpus_report(entry: Mapping[str, Any]) -> CorpusReport:
    return CorpusReport(**{**entry, "counts": FilterCounts(**entry["counts"])})


@dataclass(frozen=True)
class PreparedData:
    """What training reads: tokenizers, features, and the binary data."""

    tokenizers: Tokenizers
    features: FeatureSet
    train: list[Dataset]
    train_weights: list[float]
    train_names: list[str]
    dev: Dataset
    dev_lines: list[tuple[str, str]]
    """Raw text of the validation pairs: source, target."""
    fingerprint: str
    """Changes with the tokenizers, the features, the stored data, and the settings that made them."""

    @classmethod
    def open(cls, directory: Path | str) -> PreparedData:
        """Open a directory that `prepare` wrote.

        Raises:
            UserError: it is missing, incomplete, damaged, or of another version.
        """
        directory = Path(directory)
        manifest = read_manifest(directory)
        check_sizes(directory, manifest)
        tokenizers = Tokenizers.load(directory / "tokenizers")
        corpora = manifest["corpora"]
        return cls(
            tokenizers=tokenizers,
            features=FeatureSet.load(directory / "features", tokenizers),
            train=[Dataset(train_directory(directory, number)) for number in range(len(corpora))],
            train_weights=[corpus["weight"] for corpus in corpora],
            train_names=[corpus["name"] for corpus in corpora],
            dev=Dataset(directory / "dev"),
            dev_lines=[(source, target) for source, target in read_parallel([directory / name for name in DEV_TEXT])],
            fingerprint=manifest["fingerprint"],
        )


def train_directory(directory: Path, number: int) -> Path:
    """Where the training corpus with this number, from 0, is stored."""
    return directory / f"train-{number}"


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of prepared data.

    Raises:
        UserError: there is none, or it is of another version.
    """
    if not (directory / MANIFEST).is_file():
        raise UserError("there are no prepared data", where=str(directory), hint=_HINT)
    manifest = read_json(directory / MANIFEST)
    if not isinstance(manifest, dict) or "corpora" not in manifest:
        raise UserError("there are no prepared data", where=str(directory), hint=_HINT)
    if manifest.get("format") != FORMAT:
        raise UserError("prepared by another version of this program", where=str(directory), hint=_HINT)
    return manifest


def check_sizes(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Compare every file's size with the manifest.

    Raises:
        UserError: a file is missing, or shorter or longer than it was.
    """
    for name, recorded in manifest["files"].items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise UserError("the prepared data lack a file", where=str(path), hint=_HINT)
        if size != recorded["bytes"]:
            raise UserError(
                f"the prepared data are damaged: {size:,} bytes instead of {recorded['bytes']:,}",
                where=str(path),
                hint=_HINT,
            )


def matching_manifest(directory: Path, settings: Any, inputs: Any) -> dict[str, Any] | None:
    """The manifest of complete data that these settings made from inputs with these contents; None if there are none.

    Where the inputs lie does not matter.
    """
    try:
        manifest = read_manifest(directory)
        check_sizes(directory, manifest)
    except UserError:
        return None
    same = manifest["settings"] == settings and _contents(manifest["inputs"]) == _contents(inputs)
    return manifest if same else None


def _contents(inputs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(file["role"], file["sha256"]) for file in inputs]


def check_replaceable(directory: Path) -> None:
    """Refuse to replace a directory that holds anything `prepare` did not write.

    Raises:
        UserError: it does, or it is a file.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError("is a file, not a directory", where=str(directory), hint="Choose another data.directory.")
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    try:
        written = {MANIFEST, *read_json(directory / MANIFEST)["files"]} if found else set()
    except (UserError, KeyError, TypeError):
        written = set()
    if foreign := sorted(found - written):
        raise UserError(
            f"the directory holds files that `prepare` did not write, such as {foreign[0]}",
            where=str(directory),
            hint="Choose another data.directory, or move the files away.",
        )


def write_manifest(
    directory: Path,
    *,
    settings: Any,
    inputs: Any,
    corpora: Sequence[CorpusReport],
    dev: CorpusReport,
    vocabulary_sizes: tuple[int, int],
    advance: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Hash everything in the directory and write the manifest, the last file of all; returns it.

    The fingerprint leaves out the paths of the inputs, so that data made from moved files keep theirs.
    """
    files = {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path, advance)}
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    hashes = {name: file["sha256"] for name, file in files.items()}
    manifest = {
        "format": FORMAT,
        "settings": settings,
        "inputs": inputs,
        "corpora": [asdict(report) for report in corpora],
        "dev": asdict(dev),
        "vocabulary_sizes": list(vocabulary_sizes),
        "files": files,
        "fingerprint": sha256_text(json.dumps([FORMAT, settings, hashes], sort_keys=True)),
    }
    write_json(directory / MANIFEST, manifest)
    return manifest
