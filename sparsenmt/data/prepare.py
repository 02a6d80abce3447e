"""Raw text -> prepared data: train the tokenizers, encode, filter, store, fit the features.

Text is streamed in blocks: memory does not grow with the corpora, except inside the vocabulary's training.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from sparsenmt.data.features import FeatureSet, check_names
from sparsenmt.data.filters import FilterCounts, Pairs, apply_filters
from sparsenmt.data.prepared import (
    DEV_TEXT,
    CorpusReport,
    PreparedData,
    PreparedReport,
    check_replaceable,
    matching_manifest,
    read_manifest,
    train_directory,
    write_manifest,
)
from sparsenmt.data.progress import Bars
from sparsenmt.data.store import Dataset, DatasetWriter, write_features
from sparsenmt.data.text import check_readable, read_lines, read_parallel, write_lines
from sparsenmt.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from sparsenmt.errors import UserError
from sparsenmt.files import differences, new_directory, sha256_file
from sparsenmt.recipe import schema

__all__ = ["PreparedData", "PreparedReport", "check_prepared_for", "prepare"]

T = TypeVar("T")

_BLOCK = 10_000  # lines encoded at once
_SAMPLE_SEED = 1  # of the choice of lines that vocabularies are trained on


def prepare(data: schema.Data, *, features: Collection[str] = (), progress: bool = True) -> PreparedReport:
    """Write `data.directory`, or find that it already holds what these settings and these files give.

    Args:
        data: the recipe's data section, with its paths resolved.
        features: source features that the recipe's methods need.
        progress: show bars on stderr, if it is a terminal.

    Raises:
        UserError: the input or the settings are at fault. Nothing is left half-written.
    """
    check_names(features)
    names = _corpus_names(data.train)
    directory = Path(data.directory).resolve()
    bars = Bars(progress)
    settings = settings_of(data, features)
    inputs = _hash_inputs(data, bars)
    if manifest := matching_manifest(directory, settings, inputs):
        return PreparedReport.from_manifest(directory, manifest, up_to_date=True)

    check_replaceable(directory)
    train_pairs = [_count_pairs(corpus, bars) for corpus in data.train]
    dev_pairs = _count_pairs(data.dev, bars)
    with new_directory(directory) as partial:
        tokenizers = _train_tokenizers(data, train_pairs, bars)
        tokenizers.save(partial / "tokenizers")
        writer = _CorpusWriter(tokenizers, bars)
        reports = [
            writer.write(train_directory(partial, number), name, corpus, train_pairs[number], data.filters)
            for number, (name, corpus) in enumerate(zip(names, data.train, strict=True))
        ]
        dev_report = writer.write(partial / "dev", "dev", data.dev, dev_pairs, filters=None)
        _add_features(partial, data, tokenizers, features, bars)
        for file, path in zip(DEV_TEXT, (data.dev.source, data.dev.target), strict=True):
            write_lines(partial / file, read_lines(path))
        manifest = write_manifest(
            partial,
            settings=settings,
            inputs=inputs,
            corpora=reports,
            dev=dev_report,
            vocabulary_sizes=(tokenizers.source.size, tokenizers.target.size),
        )
    return PreparedReport.from_manifest(directory, manifest, up_to_date=False)


def settings_of(data: schema.Data, features: Collection[str]) -> dict[str, Any]:
    """What the prepared data depend on, beside the contents of the files: plain values, as the manifest holds them.

    Raises:
        UserError: two training corpora have the same name.
    """
    names = _corpus_names(data.train)
    return {
        "tokenizer": data.tokenizer.model_dump(),
        "filters": data.filters.model_dump(),
        "train": [{"name": name, "weight": corpus.weight} for name, corpus in zip(names, data.train, strict=True)],
        "features": sorted(features),
    }


def check_prepared_for(data: schema.Data, features: Collection[str]) -> None:
    """Refuse prepared data that `prepare` would now make anew: other settings, or text of another size.

    Text that is not here is not looked at: prepared data may be trained on elsewhere.

    Raises:
        UserError: they are not what the recipe asks for.
    """
    directory = Path(data.directory)
    manifest = read_manifest(directory)
    again = "Run `sparsenmt prepare` with this recipe and these overrides, or name another data.directory."
    if changed := differences(manifest["settings"], settings_of(data, features), "data"):
        raise UserError(f"prepared with other settings: {'; '.join(changed)}", where=str(directory), hint=again)
    recorded = {entry["role"]: entry["bytes"] for entry in manifest["inputs"]}
    for role, path in _input_files(data):
        if Path(path).is_file() and Path(path).stat().st_size != recorded.get(role):
            raise UserError(f"{path} is not the text that was prepared", where=str(directory), hint=again)


class _CorpusWriter:
    """Encodes corpora into binary splits, block by block."""

    def __init__(self, tokenizers: Tokenizers, bars: Bars) -> None:
        self._tokenizers = tokenizers
        self._bars = bars

    def write(
        self, directory: Path, name: str, corpus: schema.Corpus, pairs: int, filters: schema.Filters | None
    ) -> CorpusReport:
        """Write one corpus; without filters every pair is kept.

        Raises:
            UserError: the filters leave nothing.
        """
        counts = FilterCounts()
        rows = self._bars.over(read_parallel([corpus.source, corpus.target]), f"encoding {name}", total=pairs)
        sizes = (self._tokenizers.source.size, self._tokenizers.target.size)
        with DatasetWriter(directory, name=name, source_size=sizes[0], target_size=sizes[1]) as writer:
            for block in _blocks(rows):
                encoded = self._encode(block, first_line=counts.read)
                kept = apply_filters(encoded, filters, counts)
                writer.append(kept.source, kept.target, kept.lines)
        if not counts.kept:
            raise UserError(
                f"the filters leave none of the {counts.read:,} pairs of corpus {name!r}",
                where="data.filters",
                hint="Removed: " + ", ".join(f"{count:,} by {reason}" for reason, count in counts.removed.items()),
            )
        dataset = Dataset(directory)
        return CorpusReport(name, corpus.weight, counts, len(dataset.source_ids), len(dataset.target_ids))

    def _encode(self, rows: list[tuple[str, ...]], *, first_line: int) -> Pairs:
        return Pairs(
            source=self._tokenizers.source.encode_batch([row[0] for row in rows]),
            target=self._tokenizers.target.encode_batch([row[1] for row in rows]),
            lines=range(first_line, first_line + len(rows)),
        )


def _corpus_names(corpora: list[schema.Corpus]) -> list[str]:
    """The names under which the corpora are reported.

    Raises:
        UserError: two are the same.
    """
    names = [corpus.name or Path(corpus.source).name for corpus in corpora]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"two training corpora are called {repeated[0]!r}",
            where="data.train",
            hint="Give each a `name` of its own.",
        )
    return names


def _hash_inputs(data: schema.Data, bars: Bars) -> list[dict[str, Any]]:
    """Path, size and hash of every text file.

    Raises:
        UserError: a file is missing or cannot be read.
    """
    files = _input_files(data)
    for _, path in files:
        check_readable(path)
    with bars.counting("reading", total=sum(Path(path).stat().st_size for _, path in files), unit="B") as bar:
        return [
            {
                "role": role,
                "path": path,
                "bytes": Path(path).stat().st_size,
                "sha256": sha256_file(Path(path), bar.update),
            }
            for role, path in files
        ]


def _input_files(data: schema.Data) -> list[tuple[str, str]]:
    """Role and path of every text file."""
    roles = [(f"train-{number}", corpus) for number, corpus in enumerate(data.train)] + [("dev", data.dev)]
    return [
        (f"{role}.{side}", path)
        for role, corpus in roles
        for side, path in (("source", corpus.source), ("target", corpus.target))
    ]


def _count_pairs(corpus: schema.Corpus, bars: Bars) -> int:
    """The number of pairs of a corpus; the whole text is read and so found to be sound.

    Raises:
        UserError: there are none, or as `read_parallel`.
    """
    rows = read_parallel([corpus.source, corpus.target])
    count = sum(1 for _ in bars.over(rows, f"counting {Path(corpus.source).name}"))
    if not count:
        raise UserError(
            "the corpus is empty", where=f"{corpus.source} and {corpus.target}", hint="Check the paths in the recipe."
        )
    return count


def _train_tokenizers(data: schema.Data, pairs: list[int], bars: Bars) -> Tokenizers:
    """Train on all training corpora, each taken once, whatever its weight."""

    def train(*sides: list[str]) -> Tokenizer:
        lines = chain.from_iterable(read_lines(path) for side in sides for path in side)
        wanted = data.tokenizer.max_training_lines
        sampled = sample_lines(lines, total=sum(pairs) * len(sides), wanted=wanted)
        return train_tokenizer(data.tokenizer, bars.over(sampled, "learning the vocabulary"))

    sources = [corpus.source for corpus in data.train]
    targets = [corpus.target for corpus in data.train]
    if data.tokenizer.shared:
        both = train(sources, targets)
        return Tokenizers(both, both, shared=True)
    return Tokenizers(train(sources), train(targets), shared=False)


def sample_lines(lines: Iterable[str], *, total: int, wanted: int) -> Iterator[str]:
    """At most ``wanted`` of ``total`` lines, in order, every choice equally likely, always the same choice.

    Selection sampling: Knuth, The Art of Computer Programming, volume 2, algorithm 3.4.2 S.
    """
    generator = random.Random(_SAMPLE_SEED)
    for number, line in enumerate(lines):
        if (total - number) * generator.random() < wanted:
            wanted -= 1
            yield line


def _add_features(
    directory: Path, data: schema.Data, tokenizers: Tokenizers, names: Collection[str], bars: Bars
) -> None:
    """Fit the features on the stored training data, save them, and store their values in every split."""
    corpora = [Dataset(train_directory(directory, number)) for number in range(len(data.train))]
    features = FeatureSet.fit(names, tokenizers, corpora)
    features.save(directory / "features")
    if not names:
        return
    for dataset, corpus in zip([*corpora, Dataset(directory / "dev")], [*data.train, data.dev], strict=True):
        lines = _kept_lines(corpus.source, dataset) if features.needs_text else iter([""] * len(dataset))
        rows = bars.over(lines, f"features of {dataset.name}", total=len(dataset))
        values = (features.compute(dataset.source(index), line) for index, line in enumerate(rows))
        write_features(dataset.directory, features.names, values)


def _kept_lines(path: str, dataset: Dataset) -> Iterator[str]:
    """The source text of the pairs that the filters kept."""
    lines = enumerate(read_lines(path))
    for wanted in dataset.line_numbers:
        yield next(line for number, line in lines if number == wanted)


def _blocks(rows: Iterable[T]) -> Iterator[list[T]]:
    """Lists of `_BLOCK` rows, the last one shorter."""
    iterator = iter(rows)
    while block := list(islice(iterator, _BLOCK)):
        yield block
