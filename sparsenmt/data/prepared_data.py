"""The directory that `prepare` writes: its layout, manifest and contents.

``manifest.json``     settings, hashes of the texts, sizes and hashes of every other file, counts, fingerprint; sealed
``tokenizers/``       `Tokenizers.save`
``features/``         `FeatureSet.save`
``train-N/``          one `Dataset` for each training corpus, in the recipe's order
``dev/``              the validation `Dataset`; ``dev.source.txt`` and ``dev.target.txt`` are its raw text,
                      ``dev.tags.txt`` its tags if a feature needs them, ``dev.documents.txt`` the ids of its documents
                      if the recipe names them

Of a language model, the corpora are `TextDataset`, and there are no features and no raw text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.prepare.corpus_files import TAGS
from sparsenmt.data.prepare.filters import FilterCounts
from sparsenmt.data.tagging.tagged_text import TagFile, TaggedSentence
from sparsenmt.data.text import read_lines, read_parallel
from sparsenmt.data.text_dataset import TextDataset
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.storage.files import DamagedFileError, read_json, read_sealed, sha256_text, write_sealed
from sparsenmt.storage.records import Count, check_file_entries, file_entries_of, typed
from sparsenmt.storage.versions import read_consistently

FORMAT = 2
"""Version of the layout; other versions are refused."""

MANIFEST = "manifest.json"
DEV_TEXT = ("dev.source.txt", "dev.target.txt")
DEV_TAGS = "dev.tags.txt"
DEV_DOCUMENTS = "dev.documents.txt"
_HINT = "Run `sparsenmt prepare` with the recipe."
_SIDES = ("source", "target")
_MOST_LETTERS = 1000
"""Characters of a text in alphabets, at most; Chinese, Japanese and Korean have more."""
_NAMES = r"(train-\d+|dev|tokenizers|features)/.+|dev\.\w+\.txt"
_LAYOUT = re.compile(
    r"manifest\.json|dev\.(source|target|tags|documents)\.txt|(train-\d+|dev)/(meta\.json|[\w.]+\.bin)"
    r"|tokenizers/((tokenizers|frames|shared|source|target)\.(json|model)|shortlist\.safetensors)|features/\w+\.(json|bin)"
)


@dataclass(frozen=True)
class CorpusReport:
    """Counts of one prepared corpus. Tokens include EOS."""

    name: str
    weight: float
    counts: FilterCounts
    source_tokens: int
    target_tokens: int
    documents: int | None = None
    """Documents of which sentences were kept, if the corpus is packed into blocks."""
    blocks: int | None = None
    """Blocks of the corpus, if it is packed."""
    source_unknown: int | None = None
    """Unknown tokens; None in data of a version that did not count them."""
    target_unknown: int | None = None

    def unknown_shares(self) -> tuple[float, float]:
        """Shares of unknown tokens, of source and target, EOS not counted; 0 where they were not counted."""
        ends = self.counts.kept if self.blocks is None else self.blocks
        source = (self.source_unknown or 0) / max(self.source_tokens - ends, 1)
        return source, (self.target_unknown or 0) / max(self.target_tokens - ends, 1)

    def describe(self) -> str:
        """Describe the corpus in one line."""
        counts = self.counts
        parts = [f"{self.name}: {counts.kept:,} of {counts.read:,} pairs kept"]
        if self.blocks is not None and self.documents is not None:
            parts.append(f"packed into {self.blocks:,} blocks of {self.documents:,} documents")
        parts += [f"{count:,} removed by {reason}" for reason, count in sorted(counts.removed.items()) if count]
        if counts.cut:
            parts.append(f"{counts.cut:,} sources cut")
        parts.append(f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens")
        if any(shares := self.unknown_shares()):
            parts.append(" and ".join(f"{share:.2%}" for share in shares) + " of them unknown")
        return ", ".join(parts)


@dataclass(frozen=True)
class TextReport:
    """Counts of one prepared text of a language model. Tokens include EOS."""

    name: str
    weight: float
    lines: Count
    characters: Count
    tokens: Count
    unknown: Count

    def unknown_shares(self) -> tuple[float]:
        """The share of unknown tokens, EOS not counted."""
        return (self.unknown / max(self.tokens - self.lines, 1),)

    def describe(self) -> str:
        """Describe the text in one line."""
        lines = "1 line" if self.lines == 1 else f"{self.lines:,} lines"
        parts = [f"{self.name}: {lines}, {self.characters:,} characters, {self.tokens:,} tokens"]
        if self.unknown:
            parts.append(f"{self.unknown_shares()[0]:.2%} of them unknown")
        return ", ".join(parts)


@dataclass(frozen=True)
class _PreparedTokenizer:
    shared: bool
    kind: str
    vocabulary_size: Count
    character_coverage: float


@dataclass(frozen=True)
class _PreparedTagger:
    given: list[str]


@dataclass(frozen=True)
class _PreparedSettings:
    tokenizer: _PreparedTokenizer
    tagger: _PreparedTagger | None = None
    task: Literal["translation", "language_model"] = "translation"


@dataclass(frozen=True)
class _InputText:
    role: str
    bytes: Count
    sha256: str


@dataclass(frozen=True)
class PreparedManifest:
    """The contents of the manifest, except ``files``.

    Args:
        vocabulary_sizes: tokens of the source and of the target vocabulary; of a language model, twice the same.
        vocabulary_characters: their tokens of a single character; None in data of older versions.
    """

    corpora: Annotated[list[CorpusReport], Field(min_length=1)] | Annotated[list[TextReport], Field(min_length=1)]
    dev: CorpusReport | TextReport
    settings: _PreparedSettings
    inputs: list[_InputText]
    vocabulary_sizes: tuple[Count, Count]
    fingerprint: str
    vocabulary_characters: tuple[Count, Count] | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedReport(PreparedManifest):
    """The result of `prepare`.

    Args:
        up_to_date: True if the data were already prepared, and nothing was written.
    """

    directory: Path
    up_to_date: bool

    def __repr__(self) -> str:
        state = "up to date" if self.up_to_date else "written"
        sizes = " and ".join(f"{size:,}" for size in self.vocabulary_sizes[: 1 if self.shared else None])
        return f"PreparedReport({self.directory}: {self.lines:,} lines, vocabulary of {sizes} tokens, {state})"

    @property
    def shared(self) -> bool:
        """True if both languages share one vocabulary."""
        return self.settings.tokenizer.shared

    @property
    def lines(self) -> int:
        """Lines of the training corpora that were read."""
        return sum(each.lines if isinstance(each, TextReport) else each.counts.read for each in self.corpora)

    @classmethod
    def from_manifest(cls, directory: Path, manifest: Mapping[str, Any], *, up_to_date: bool) -> PreparedReport:
        """The report on the data of a manifest."""
        found = typed(manifest, PreparedManifest, directory / MANIFEST, hint=_HINT)
        return cls(**vars(found), directory=directory, up_to_date=up_to_date)

    def describe(self) -> str:
        """Describe the result in several lines."""
        return "\n".join(
            [
                *(line for report in (*self.corpora, self.dev) for line in _lines_on(report)),
                f"vocabulary: {self._by_side(self.vocabulary_sizes)} tokens",
                *self._shortfall(),
                *self._coverage(),
                f"{self.directory}: {'up to date' if self.up_to_date else 'written'}",
            ]
        )

    def _by_side(self, counts: tuple[int, int]) -> str:
        if isinstance(self.dev, TextReport):
            return f"{counts[0]:,}"
        return f"{counts[0]:,} shared" if self.shared else f"{counts[0]:,} source and {counts[1]:,} target"

    def _shortfall(self) -> list[str]:
        """A line on unigram vocabularies that are smaller than wanted; BPE is refused, the other kinds have a limit."""
        sizes = (
            {"shared": self.vocabulary_sizes[0]}
            if self.shared
            else dict(zip(_SIDES, self.vocabulary_sizes, strict=True))
        )
        wanted = self.settings.tokenizer.vocabulary_size
        small = {side: size for side, size in sizes.items() if size < wanted}
        if self.settings.tokenizer.kind != "unigram" or not small:
            return []
        found = " and ".join(f"{size:,} {side}" for side, size in small.items())
        found = self._by_side(self.vocabulary_sizes) if isinstance(self.dev, TextReport) else found
        return [
            f"vocabulary: {wanted:,} tokens were wanted, and unigram finds {found} ones: the training "
            f"text repeats no other sequences; write data.tokenizer.vocabulary_size={min(small.values())}, or add text"
        ]

    def _coverage(self) -> list[str]:
        """A line on the characters of the vocabularies, where some are left out or they are those of no alphabet."""
        covered, characters = self.settings.tokenizer.character_coverage, self.vocabulary_characters
        if self.settings.tokenizer.kind in ("word", "byte") or characters is None:
            return []
        if covered == 1 and max(characters) <= _MOST_LETTERS:
            return []
        running = f"{100 * covered:.10g}% of the running text; others are unknown"
        found = "all of the training text" if covered == 1 else running
        return [f"characters: {self._by_side(characters)}, {found} (data.tokenizer.character_coverage)"]


def _lines_on(report: CorpusReport | TextReport) -> list[str]:
    """A line on a corpus, and the examples of what filters left out of it."""
    return [report.describe(), *(report.counts.describe_examples() if isinstance(report, CorpusReport) else ())]


class _Prepared:
    """Prepared data of a task."""

    @classmethod
    def open(cls, directory: Path | str) -> Self:
        """Open a directory that `prepare` wrote, after verifying every file's hash.

        Raises:
            UserError: it is missing, of another version, or of another task.
            DamagedFileError: a file is missing or has changed.
        """
        return read_consistently(Path(directory), ["."], cls._open)

    @classmethod
    def _open(cls, directory: Path) -> Self:
        raise NotImplementedError


@dataclass(frozen=True)
class PreparedData(_Prepared):
    """Everything that training reads: tokenizers, features and datasets."""

    tokenizers: Tokenizers
    features: FeatureSet
    train: list[Dataset]
    train_weights: list[float]
    dev: Dataset
    dev_lines: list[tuple[str, str]]
    """Raw text of the validation pairs: source and target."""
    dev_tags: list[TaggedSentence] | None
    """Tags of the validation sources, if a feature needs them; so training needs no tagger."""
    fingerprint: str
    """Hash of the tokenizers, features, datasets and settings."""
    dev_documents: list[str] | None = None
    """The document id of every validation line, if the recipe names a file of them."""

    @classmethod
    def _open(cls, directory: Path) -> Self:
        manifest = _manifest_of_task(directory, "translation")
        verify_files(directory, manifest)
        tokenizers = Tokenizers.load(directory / "tokenizers")
        features = FeatureSet.load(directory / "features", tokenizers)
        dev_lines = [(source, target) for source, target in read_parallel([directory / name for name in DEV_TEXT])]
        dev_tags = None
        if features.source_tagger is not None:
            given = f"dev.{TAGS}" in (manifest["settings"].get("tagger") or {}).get("given", ())
            tagset = features.source_tagger.given_tagset if given else features.source_tagger.tagger_tagset
            tags = TagFile(directory / DEV_TAGS, tagset)
            dev_tags = list(tags.sentences(directory / DEV_TEXT[0], [source for source, _ in dev_lines]))
        ids = directory / DEV_DOCUMENTS
        dev_documents = list(read_lines(ids)) if ids.name in manifest["files"] else None
        corpora = manifest["corpora"]
        train = [Dataset(train_directory(directory, number)) for number in range(len(corpora))]
        for dataset in (*train, dev := Dataset(directory / "dev")):
            dataset.check_contents(tokenizers.source.size, tokenizers.target.size)
        return cls(
            tokenizers=tokenizers,
            features=features,
            train=train,
            train_weights=[corpus["weight"] for corpus in corpora],
            dev=dev,
            dev_lines=dev_lines,
            dev_tags=dev_tags,
            fingerprint=manifest["fingerprint"],
            dev_documents=dev_documents,
        )


@dataclass(frozen=True)
class PreparedText(_Prepared):
    """Everything that the training of a language model reads: its tokenizer and its texts."""

    tokenizers: Tokenizers
    """The tokenizer, as that of both sides."""
    train: list[TextDataset]
    train_weights: list[float]
    dev: TextDataset
    fingerprint: str
    """Hash of the tokenizer, texts and settings."""
    features: FeatureSet = field(default_factory=lambda: FeatureSet({}))
    """None: they are of a source."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the text."""
        return self.tokenizers.target

    @classmethod
    def _open(cls, directory: Path) -> Self:
        manifest = _manifest_of_task(directory, "language_model")
        verify_files(directory, manifest)
        tokenizers = Tokenizers.load(directory / "tokenizers")
        corpora = manifest["corpora"]
        train = [TextDataset(train_directory(directory, number)) for number in range(len(corpora))]
        for dataset in (*train, dev := TextDataset(directory / "dev")):
            dataset.check_contents(tokenizers.target.size)
        weights = [corpus["weight"] for corpus in corpora]
        return cls(tokenizers, train, weights, dev, manifest["fingerprint"])


def _manifest_of_task(directory: Path, task: str) -> dict[str, Any]:
    """Read the manifest of prepared data of a task; UserError if they are of the other one, or as `read_manifest`."""
    manifest = read_manifest(directory)
    prepared = manifest["settings"].get("task", "translation")
    if prepared != task:
        raise UserError(
            f"the data were prepared for `data.task: {prepared}`",
            where=str(directory),
            hint="Run `sparsenmt prepare` with the recipe, or name another data.directory.",
        )
    return manifest


def train_directory(directory: Path, number: int) -> Path:
    """The directory of a training corpus, numbered from 0."""
    return directory / f"train-{number}"


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of prepared data.

    Raises:
        UserError: there is none, or it is of another version.
        DamagedFileError: it has changed.
    """
    path = directory / MANIFEST
    manifest = read_json(path, hint=_HINT) if path.is_file() else None
    if not isinstance(manifest, dict) or "corpora" not in manifest:
        raise UserError("there are no prepared data", where=str(directory), hint=_HINT, missing=directory)
    if manifest.get("format") != FORMAT:
        raise UserError("prepared by another version of this program", where=str(directory), hint=_HINT)
    manifest = read_sealed(path, hint=_HINT)
    typed(manifest, PreparedManifest, path, hint=_HINT)
    file_entries_of(manifest, path, names=_NAMES, hint=_HINT)
    return manifest


def verify_files(directory: Path, manifest: Mapping[str, Any], *, progress: bool = True) -> None:
    """Verify every file against the manifest. Links are allowed, as to another disk: the files are never copied.

    Raises:
        DamagedFileError: a file is missing or has changed.
    """
    total = sum(entry["bytes"] for entry in manifest["files"].values())
    with progress_bar("checking the data", total, unit="B", shown=progress) as advance:
        check_file_entries(directory, manifest["files"], hint=_HINT, advance=advance, links=True)


def matching_manifest(directory: Path, settings: Any, inputs: Any, progress: bool) -> dict[str, Any] | None:
    """The manifest of complete data with these settings and input texts, whatever their paths; None if there are none.

    Warns if the data match but are damaged.
    """
    try:
        manifest = read_manifest(directory)
        if manifest["settings"] != settings or content_hashes(manifest["inputs"]) != content_hashes(inputs):
            return None
        verify_files(directory, manifest, progress=progress)
    except DamagedFileError as error:
        notify(f"warning: {error.where}: {error.message}; the data are prepared again")
        return None
    except UserError:
        return None
    return manifest


def content_hashes(inputs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Role and hash of every text, by which inputs are compared."""
    return [(file["role"], file["sha256"]) for file in inputs]


def check_replaceable(directory: Path) -> None:
    """Check that a directory may be replaced, because `prepare` wrote everything in it.

    Raises:
        UserError: it contains other files, or is a file.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError("is a file, not a directory", where=str(directory), hint="Choose another data.directory.")
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    ours = set()
    if MANIFEST in found:
        try:
            ours = {MANIFEST, *read_manifest(directory)["files"]}
        except UserError:  # damaged, or of another version: recognize files by name
            ours = {name for name in found if _LAYOUT.fullmatch(name)}
    if foreign := sorted(found - ours):
        raise UserError(
            f"the directory contains files that `prepare` did not write, such as {foreign[0]}",
            where=str(directory),
            hint="Choose another data.directory, or move the files away.",
        )


def write_manifest(
    directory: Path,
    *,
    settings: Any,
    inputs: Any,
    corpora: Sequence[Any],
    dev: Any,
    vocabulary_sizes: tuple[int, int],
    vocabulary_characters: tuple[int, int],
    files: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the manifest, after all other files; returns it.

    The fingerprint does not depend on the paths of the inputs.
    """
    hashes = {name: file["sha256"] for name, file in files.items()}
    manifest = {
        "format": FORMAT,
        "settings": settings,
        "inputs": inputs,
        "corpora": list(corpora),
        "dev": dev,
        "vocabulary_sizes": list(vocabulary_sizes),
        "vocabulary_characters": list(vocabulary_characters),
        "files": files,
        "fingerprint": sha256_text(json.dumps([FORMAT, settings, hashes], sort_keys=True)),
    }
    write_sealed(directory / MANIFEST, manifest)
    return manifest
