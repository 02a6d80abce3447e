"""Raw text -> prepared data: train the tokenizers, encode, filter, store, fit the features.

Text is streamed in blocks: memory does not grow with the corpora. The work is done in stages beside the directory that
is wanted; after an interruption the same call goes on after those that are finished (see `stages`).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import asdict
from functools import partial as bound
from itertools import chain, tee
from pathlib import Path
from typing import Any, TypeVar

import click

from sparsenmt import __version__
from sparsenmt.data.documents import DocumentBlock, read_ids, tokenizer_options
from sparsenmt.data.features.feature_set import FeatureSet, check_names, need_tags
from sparsenmt.data.prepare.corpus_files import TAGS, Inputs, corpus_names, input_files
from sparsenmt.data.prepare.filters import EncodedPairs, FilterCounts, apply_filters, cut_sources
from sparsenmt.data.prepare.packing import pack_corpus
from sparsenmt.data.prepare.stages import Stages, forget, workplace
from sparsenmt.data.prepared import (
    DEV_DOCUMENTS,
    DEV_TAGS,
    DEV_TEXT,
    FORMAT,
    MANIFEST,
    CorpusReport,
    PreparedData,
    PreparedReport,
    check_replaceable,
    contents,
    matching_manifest,
    read_manifest,
    train_directory,
    write_manifest,
)
from sparsenmt.data.store import Dataset, DatasetWriter, write_features
from sparsenmt.data.tagging.corpora import CorpusTags
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.text import blocks, read_lines, read_parallel, write_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from sparsenmt.errors import UserError
from sparsenmt.files import describe_changes, has_leftovers, publish_directory
from sparsenmt.progress import Bars
from sparsenmt.recipe import schema

T = TypeVar("T")
__all__ = ["PreparedData", "PreparedReport", "check_prepared_for", "prepare"]

_PIECES = 1 << 20  # whose features are computed at once;
_TAGGED_PIECES = 1 << 14  # fewer, so that progress shows, where each line is tagged
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
    directory = Path(data.directory).resolve()
    bars = Bars(progress)
    settings = settings_of(data, features)
    inputs = Inputs.read(data, bars, tags=need_tags(features))
    leftovers = has_leftovers(directory)
    if not leftovers and (manifest := matching_manifest(directory, settings, inputs.entries, bars)):
        return PreparedReport.from_manifest(directory, manifest, up_to_date=True)
    check_replaceable(directory)
    with workplace(directory) as partial:
        # `workplace` may have put in its place what a process had finished that was killed.
        if leftovers and (manifest := matching_manifest(directory, settings, inputs.entries, bars)):
            shutil.rmtree(partial)
            return PreparedReport.from_manifest(directory, manifest, up_to_date=True)
        check_replaceable(directory)
        made = (partial / MANIFEST).exists() and matching_manifest(partial, settings, inputs.entries, bars)
        manifest = made or _Preparation(data, inputs, sorted(features), partial, bars).run(settings)
        forget(partial)
        publish_directory(partial, directory)
    return PreparedReport.from_manifest(directory, manifest, up_to_date=False)


def settings_of(data: schema.Data, features: Collection[str]) -> dict[str, Any]:
    """What the prepared data depend on, beside the contents of the files: plain values, as the manifest holds them.

    Raises:
        UserError: two training corpora have the same name.
    """
    names = corpus_names(data.train)
    tokenizer = tokenizer_options(data).model_dump()
    if not tokenizer["user_symbols"]:  # what was prepared before the key was there stays what it is
        del tokenizer["user_symbols"]
    tags = need_tags(features)
    tagger = {"name": data.tagger.name, "language": data.tagger.language or data.source_language}
    given = [role for role, _ in input_files(data, tags=True) if role.endswith(f".{TAGS}")]
    return {
        **({"tagger": {**tagger, "given": given}} if tags else {}),
        "tokenizer": tokenizer,
        "filters": data.filters.model_dump(),
        **({"documents": data.documents.model_dump(exclude={"source_length"})} if data.documents is not None else {}),
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
    if changed := describe_changes(manifest["settings"], settings_of(data, features), "data"):
        raise UserError(f"prepared with other settings: {'; '.join(changed)}", where=str(directory), hint=again)
    recorded = {entry["role"]: entry["bytes"] for entry in manifest["inputs"]}
    for role, path in input_files(data, tags=need_tags(features)):
        if Path(path).is_file() and Path(path).stat().st_size != recorded.get(role):
            raise UserError(f"{path} is not the text that was prepared", where=str(directory), hint=again)


class _Preparation:
    """The stages, in a directory beside the one that is wanted."""

    def __init__(self, data: schema.Data, inputs: Inputs, features: list[str], partial: Path, bars: Bars) -> None:
        self._data, self._inputs, self._features = data, inputs, features
        self._partial, self._bars = partial, bars
        self._tags = CorpusTags(data) if need_tags(features) else None
        self._corpora = [*data.train, data.dev]
        self._names = [*corpus_names(data.train), "dev"]
        self._directories = [*(train_directory(partial, number) for number in range(len(data.train))), partial / "dev"]

    def run(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Do what is not done, and return the manifest."""
        self._inputs.warn()
        if self._tags is not None:
            self._tags.check(self._bars)
        task = {
            "format": FORMAT,
            "version": __version__,
            "settings": settings,
            "inputs": [list(each) for each in contents(self._inputs.entries)],
        }
        stages = Stages(self._partial, task, self._bars)
        stages.run("vocabularies", self._train_tokenizers)
        tokenizers = Tokenizers.load(self._partial / "tokenizers")
        reports = [stages.run(name, bound(self._write, n, tokenizers)) for n, name in enumerate(self._stage_names())]
        stages.run("validation text", self._write_dev_text)
        stages.run("features", bound(self._fit_features, tokenizers))
        if self._features:
            features = FeatureSet.load(self._partial / "features", tokenizers)
            for number, name in enumerate(self._stage_names()):
                stages.run(f"features of {name}", bound(self._write_features, number, features, tokenizers))
        self._inputs.check_unchanged()
        return write_manifest(
            self._partial,
            settings=settings,
            inputs=self._inputs.entries,
            corpora=reports[:-1],
            dev=reports[-1],
            vocabulary_sizes=(tokenizers.source.size, tokenizers.target.size),
            files=stages.files,
        )

    def _stage_names(self) -> list[str]:
        return [directory.name for directory in self._directories]

    def _train_tokenizers(self) -> None:
        """Train on all training corpora, each taken once, whatever its weight."""
        options = tokenizer_options(self._data)
        total = sum(self._inputs.pairs[:-1])

        def train(*sides: list[str]) -> Tokenizer:
            lines = chain.from_iterable(read_lines(path) for side in sides for path in side)
            sampled = sample_lines(lines, total=total * len(sides), wanted=options.max_training_lines)
            return train_tokenizer(options, self._bars.over(sampled, "learning the vocabulary"))

        sources = [corpus.source for corpus in self._data.train]
        targets = [corpus.target for corpus in self._data.train]
        if options.shared:
            both = train(sources, targets)
            tokenizers = Tokenizers(both, both, shared=True)
        else:
            tokenizers = Tokenizers(train(sources), train(targets), shared=False)
        tokenizers.save(self._partial / "tokenizers")

    def _write(self, number: int, tokenizers: Tokenizers) -> dict[str, Any]:
        """Encode, filter and store a corpus; validation pairs are all kept, their sources cut like the others.

        Raises:
            UserError: the filters leave nothing.
        """
        corpus, name, directory = self._corpora[number], self._names[number], self._directories[number]
        counts = FilterCounts()
        sizes = (tokenizers.source.size, tokenizers.target.size)
        with DatasetWriter(
            directory, name=name, source_size=sizes[0], target_size=sizes[1], features=self._features
        ) as writer:
            packed = self._append(number, tokenizers, counts, writer)
        if not counts.kept:
            raise UserError(
                f"the filters leave none of the {counts.read:,} pairs of corpus {name!r}",
                where="data.filters",
                hint="Removed: "
                + ", ".join(f"{count:,} by {reason}" for reason, count in counts.removed.items())
                + ".",
            )
        dataset = Dataset(directory, with_features=False)
        report = CorpusReport(name, corpus.weight, counts, len(dataset.source_ids), len(dataset.target_ids), **packed)
        return {key: value for key, value in asdict(report).items() if value is not None}

    def _append(
        self, number: int, tokenizers: Tokenizers, counts: FilterCounts, writer: DatasetWriter
    ) -> dict[str, int]:
        """Store the pairs of a corpus, or its blocks; returns what the report says of those."""
        if self._data.documents is None:
            for _, _, kept in self._pairs(number, tokenizers, counts):
                writer.append(kept.source, kept.target, kept.lines)
            return {}
        documents, number_of_blocks = 0, 0
        last: Hashable = None
        for group in blocks(self._packed(number, tokenizers, counts), lambda block: sum(map(len, block.texts))):
            source, target = zip(*(block.ids for block in group), strict=True)
            writer.append(source, target, [block.first for block in group])
            number_of_blocks += len(group)
            for block in group:
                documents, last = documents + (block.document != last), block.document
        if self._corpora[number].documents is None:
            return {}
        return {"documents": documents, "blocks": number_of_blocks}

    def _pairs(
        self, number: int, tokenizers: Tokenizers, counts: FilterCounts
    ) -> Iterator[tuple[int, list[tuple[str, ...]], EncodedPairs]]:
        """Of lines after each other the number of the first, their text, and the pairs that the filters leave."""
        corpus, filters = self._corpora[number], self._data.filters
        lines = self._bars.over(
            read_parallel([corpus.source, corpus.target]),
            f"encoding {self._names[number]}",
            total=self._inputs.pairs[number],
        )
        for rows in blocks(lines, lambda row: len(row[0]) + len(row[1])):
            first = counts.read
            pairs = EncodedPairs(
                source=tokenizers.source.encode_batch([row[0] for row in rows]),
                target=tokenizers.target.encode_batch([row[1] for row in rows]),
                lines=range(first, first + len(rows)),
            )
            if number == len(self._data.train):  # dev
                yield first, rows, cut_sources(pairs, filters.max_source_length, counts)
            else:
                yield first, rows, apply_filters(pairs, filters, counts)

    def _packed(
        self,
        number: int,
        tokenizers: Tokenizers,
        counts: FilterCounts,
        tags: Iterable[TaggedSentence] | None = None,
    ) -> Iterator[DocumentBlock]:
        assert self._data.documents is not None
        pairs = self._pairs(number, tokenizers, counts)
        return pack_corpus(self._corpora[number], pairs, tokenizers, self._data.documents, tags)

    def _write_dev_text(self) -> None:
        for file, path in zip(DEV_TEXT, (self._data.dev.source, self._data.dev.target), strict=True):
            write_lines(self._partial / file, read_lines(path))
        if self._tags is not None:
            write_lines(self._partial / DEV_TAGS, self._tags.dev_lines())
        if self._data.dev.documents is not None:
            write_lines(self._partial / DEV_DOCUMENTS, read_ids(self._data.dev.documents))

    def _fit_features(self, tokenizers: Tokenizers) -> None:
        """Fit the features on the stored training data."""
        corpora = [Dataset(directory, with_features=False) for directory in self._directories[:-1]]
        tagging = self._tags.tagging(tokenizers.source) if self._tags is not None else None
        FeatureSet.fit(self._features, tokenizers, corpora, tagging).save(self._partial / "features")

    def _write_features(self, number: int, features: FeatureSet, tokenizers: Tokenizers) -> None:
        """Store the features' values beside the pieces of a corpus."""
        dataset = Dataset(self._directories[number], with_features=False)
        needs_text = features.needs_text
        lines, tags = self._text(number, features, tokenizers, dataset) if needs_text else (iter(()), None)
        pieces = _PIECES if self._tags is None else _TAGGED_PIECES
        with self._bars.counting(f"features of {dataset.name}", total=len(dataset), unit="line") as bar:

            def values() -> Iterator[Any]:
                for first, last in dataset.spans(pieces):
                    offsets = dataset.source_offsets
                    ids = dataset.source_ids[offsets[first] : offsets[last]].astype("int64")
                    texts = [next(lines) for _ in range(first, last)] if needs_text else []
                    beside = [next(tags) for _ in range(first, last)] if tags is not None else None
                    yield features.compute_all(ids, texts, beside)
                    bar.update(last - first)

            write_features(dataset.directory, features.names, values())
        if features.tagging is not None and (note := features.tagging.report(dataset.name)):
            click.echo(note, err=True)

    def _text(
        self, number: int, features: FeatureSet, tokenizers: Tokenizers, dataset: Dataset
    ) -> tuple[Iterator[str], Iterator[TaggedSentence] | None]:
        """The sources that are stored, and the tags beside them: those that are given, and those of packed sentences,
        which are tagged one by one."""
        source = self._corpora[number].source
        given = self._tags.beside(number) if self._tags is not None else None
        if self._data.documents is None:
            return _kept(read_lines(source), dataset), _kept(given, dataset) if given is not None else None
        if given is None and features.tagging is not None:
            given = map(features.tagging.tag, read_lines(source))
        ours, theirs = tee(self._packed(number, tokenizers, FilterCounts(), given))
        tags = (block.tags for block in theirs if block.tags is not None)
        return (block.texts[0] for block in ours), tags if given is not None else None


def sample_lines(lines: Iterable[str], *, total: int, wanted: int) -> Iterator[str]:
    """At most ``wanted`` of ``total`` lines, in order, every choice equally likely, always the same choice.

    Selection sampling: Knuth, The Art of Computer Programming, volume 2, algorithm 3.4.2 S.
    """
    generator = random.Random(_SAMPLE_SEED)
    for number, line in enumerate(lines):
        if (total - number) * generator.random() < wanted:
            wanted -= 1
            yield line


def _kept(items: Iterable[T], dataset: Dataset) -> Iterator[T]:
    """Of what a corpus has for each of its lines, that of the pairs that the filters kept."""
    numbered = enumerate(items)
    for wanted in dataset.line_numbers:
        yield next(item for number, item in numbered if number == wanted)
