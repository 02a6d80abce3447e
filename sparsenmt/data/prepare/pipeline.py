"""Raw text -> prepared data: train the tokenizers, encode, filter and store the corpora, fit the source features.

Text is streamed in batches, so memory does not grow with the corpora. The work is done in stages under a temporary
name; after an interruption the same call resumes after the finished stages (see `kept_work.Stages`).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, count, repeat, tee
from pathlib import Path
from typing import Any, TypeVar

from sparsenmt import __version__
from sparsenmt.data.dataset import Dataset, DatasetWriter, count_token, write_features, write_links
from sparsenmt.data.documents import BlockPacker, BlockSentence, DocumentBlock, read_document_ids, tokenizer_settings
from sparsenmt.data.features.feature_set import FeatureSet, need_tags
from sparsenmt.data.line_parts import LinePart
from sparsenmt.data.prepare.chosen_lines import chosen_lines, read_chosen_pairs, read_chosen_parts
from sparsenmt.data.prepare.corpus_files import (
    ALIGNMENTS,
    TAGS,
    CorpusFiles,
    corpus_names,
    file_stamp,
    input_files,
    longest_line,
)
from sparsenmt.data.prepare.encoder_pool import BlockEncoder, EncoderPool, NumberedPairs, encoder_pool
from sparsenmt.data.prepare.filters import EncodedPairs, FilterCounts
from sparsenmt.data.prepare.survey import survey_text
from sparsenmt.data.prepare.text_filters import TextFilters
from sparsenmt.data.prepared_data import (
    DEV_DOCUMENTS,
    DEV_TAGS,
    DEV_TEXT,
    FORMAT,
    MANIFEST,
    CorpusReport,
    PreparedData,
    PreparedReport,
    TextReport,
    check_replaceable,
    content_hashes,
    matching_manifest,
    read_manifest,
    train_directory,
    write_manifest,
)
from sparsenmt.data.tagging.source_tagger import CorpusTags
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.text import bounded_batches, read_lines, read_parallel, write_lines
from sparsenmt.data.text_dataset import TextDataset, TextWriter
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers, alphabet_size, train_tokenizer
from sparsenmt.data.vocabulary import UNK
from sparsenmt.data.word_links import parse_links, places_of_spans, token_links, word_spans
from sparsenmt.errors import UserError
from sparsenmt.languages import uses_joiners
from sparsenmt.process.progress import notify, progress_bar, progress_over
from sparsenmt.recipe import schema
from sparsenmt.storage.files import has_leftovers, publish_directory
from sparsenmt.storage.kept_work import Stages, describe_changes, directory_of_stages, remove_stage_record
from sparsenmt.storage.records import file_entries

T = TypeVar("T")
__all__ = ["PreparedData", "PreparedReport", "check_prepared_data", "prepare"]

_FEATURE_TOKENS = 1 << 20  # tokens whose features are computed at once
_TAGGED_TOKENS = 1 << 14  # the same if each line is tagged, so that the progress bar moves
_SAMPLE_SEED = 1  # of the choice of lines that vocabularies are trained on


def prepare(
    data: schema.Data, *, features: Collection[str] = (), progress: bool = True, processes: int | None = None
) -> PreparedReport:
    """Prepare a corpus: write `data.directory`, unless it already holds the result of these settings and texts.

    Args:
        data: the recipe's data section, with its paths resolved.
        features: source features that the recipe's methods need.
        progress: show the progress on stderr.
        processes: that encode sentence pairs, of one thread each; None: this process, with the tokenizer's threads. The
            result is the same.

    Raises:
        UserError: the input or the settings are wrong. Nothing is left half-written.
    """
    if data.is_language_model and features:
        raise UserError(
            f"the recipe's methods read {', '.join(sorted(features))} of a source, and a language model has none",
            where="model.attention.decoder_self",
            hint="Choose other methods.",
        )
    if features and (tagged := [corpus for corpus in data.train if corpus.tag is not None]):
        raise UserError(
            f"the recipe's methods read {', '.join(sorted(features))} of the source's words, and a tag is none",
            where=f"data.train.{data.train.index(tagged[0])}.tag",
            hint="Leave the tag out, or choose other methods.",
        )
    with_tags = need_tags(features)
    directory = Path(data.directory).resolve()
    settings = preparation_settings(data, features)
    inputs = CorpusFiles.read(data, progress, tags=with_tags)
    leftovers = has_leftovers(directory)
    if not leftovers and (manifest := matching_manifest(directory, settings, inputs.entries, progress)):
        return PreparedReport.from_manifest(directory, manifest, up_to_date=True)
    check_replaceable(directory)
    with directory_of_stages(directory, "prepares these data") as staging:
        # `directory_of_stages` may have published what a killed process had finished.
        if leftovers and (manifest := matching_manifest(directory, settings, inputs.entries, progress)):
            shutil.rmtree(staging)
            return PreparedReport.from_manifest(directory, manifest, up_to_date=True)
        check_replaceable(directory)
        complete = (staging / MANIFEST).exists() and matching_manifest(staging, settings, inputs.entries, progress)
        kind = _TextPreparation if data.is_language_model else _PairPreparation
        manifest = complete or kind(data, inputs, sorted(features), staging, progress, processes).run(settings)
        remove_stage_record(staging)
        publish_directory(staging, directory)
    return PreparedReport.from_manifest(directory, manifest, up_to_date=False)


def preparation_settings(data: schema.Data, features: Collection[str]) -> dict[str, Any]:
    """Everything that the prepared data depend on except the texts, as JSON values for the manifest.

    Raises:
        UserError: two training corpora have the same name.
    """
    names = corpus_names(data.train)
    tokenizer = tokenizer_settings(data).model_dump()
    if not tokenizer["user_symbols"]:  # data that were prepared before the key existed stay valid
        del tokenizer["user_symbols"]
    if data.tokenizer.from_model is not None:
        tokenizer["from_model"] = {name: each["sha256"] for name, each in file_entries(_given_folder(data)).items()}
    younger = ("lines", "lines_seed", "tag")  # than prepared data: they are settings where they are set
    train = [
        {"name": name, "weight": corpus.weight} | corpus.model_dump(include={*younger}, exclude_none=True)
        for name, corpus in zip(names, data.train, strict=True)
    ]
    if data.is_language_model:
        return {"task": data.task, "tokenizer": tokenizer, "train": train}
    tags = need_tags(features)
    tagger = {"name": data.tagger.name, "language": data.tagger.language or data.source_language}
    given = [role for role, _ in input_files(data, tags=True) if role.endswith(f".{TAGS}")]
    return {
        **({"tagger": {**tagger, "given": given}} if tags else {}),
        "tokenizer": tokenizer,
        "filters": data.filters.model_dump(),
        **({"languages": [data.source_language, data.target_language]} if data.filters.languages else {}),
        **({"documents": data.documents.model_dump(exclude={"source_length"})} if data.documents is not None else {}),
        "train": train,
        "features": sorted(features),
        **({"aligned": aligned} if (aligned := _aligned(data)) else {}),
    }


def _aligned(data: schema.Data) -> list[str]:
    """Return the roles of the files with alignments."""
    return [role for role, _ in input_files(data) if role.endswith(f".{ALIGNMENTS}")]


def _given_folder(data: schema.Data) -> Path:
    """The tokenizers of the model that the recipe names; UserError if there are none."""
    folder = Path(data.tokenizer.from_model or "") / "tokenizers"
    if not folder.is_dir():
        raise UserError(
            "there are no tokenizers of a model",
            where=f"data.tokenizer.from_model: {folder}",
            hint="Name a model directory.",
        )
    return folder


def check_prepared_data(data: schema.Data, features: Collection[str]) -> str:
    """Check that the prepared data are those that the recipe describes: the same settings and texts.

    A text whose size and times are the recorded ones is not read again. Texts that do not exist are not checked:
    training may run on another machine.

    Returns:
        the fingerprint of the data that were checked.

    Raises:
        UserError: they differ.
    """
    directory = Path(data.directory)
    manifest = read_manifest(directory)
    again = "Run `sparsenmt prepare` with this recipe and these overrides, or name another data.directory."
    settings = preparation_settings(data, features)
    rules = manifest["settings"]["tokenizer"]["normalization"], settings["tokenizer"]["normalization"]
    # Earlier versions had one default for all languages.
    if rules == ("nmt_nfkc", "nfkc") and uses_joiners(data.source_language, data.target_language):
        settings["tokenizer"]["normalization"] = rules[0]
        text = "prepared with data.tokenizer.normalization nmt_nfkc, which turns zero-width non-joiners into spaces"
        notify(f"{directory}: {text}; `sparsenmt prepare` keeps them, with nfkc", once=True)
    if changed := describe_changes(manifest["settings"], settings, "data"):
        raise UserError(f"prepared with other settings: {'; '.join(changed)}", where=str(directory), hint=again)
    recorded = {entry["role"]: entry for entry in manifest["inputs"]}
    files = {role: path for role, path in input_files(data, tags=need_tags(features)) if Path(path).is_file()}
    doubtful = {role: path for role, path in files.items() if recorded.get(role, {}).get("stamp") != file_stamp(path)}
    total = sum(Path(path).stat().st_size for path in doubtful.values())
    with progress_bar("checking the texts", total, unit="B") as advance:
        for role, path in doubtful.items():
            found = survey_text(path, advance, longest=longest_line(role))
            if role not in recorded or found.sha256 != recorded[role]["sha256"]:
                raise UserError(f"{path} is not the text that was prepared", where=str(directory), hint=again)
    return str(manifest["fingerprint"])


class _Preparation:
    """The stages of a preparation in a temporary directory."""

    def __init__(
        self,
        data: schema.Data,
        inputs: CorpusFiles,
        features: list[str],
        staging: Path,
        progress: bool,
        processes: int | None,
    ) -> None:
        self._data, self._inputs, self._features = data, inputs, features
        self._staging, self._progress, self._processes = staging, progress, processes
        self._tags = CorpusTags(data) if need_tags(features) else None
        self._by_text = None if data.is_language_model else TextFilters.of(data)
        self._corpora = [*data.train, data.dev]
        self._chosen = [chosen_lines(*each) for each in zip(self._corpora, inputs.lines, strict=True)]
        self._names = [*corpus_names(data.train), "dev"]
        self._directories = [*(train_directory(staging, number) for number in range(len(data.train))), staging / "dev"]

    def run(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Run the stages that are not finished, and return the manifest."""
        self._inputs.warn(self._data.train)
        self._check()
        task = {
            "format": FORMAT,
            "version": __version__,
            "settings": settings,
            "inputs": [list(each) for each in content_hashes(self._inputs.entries)],
        }
        stages = Stages(self._staging, task, self._progress)
        stage_names = [directory.name for directory in self._directories]
        packs = self._data.is_language_model or self._data.documents is not None
        # This process encodes where lines are packed, or none are left.
        alone = packs or all(map(stages.is_finished, stage_names))
        processes = None if alone else self._processes
        with encoder_pool(self._staging / "tokenizers", self._data.filters, processes, self._by_text) as pool:
            stages.run("vocabularies", self._make_tokenizers)
            tokenizers = Tokenizers.load(self._staging / "tokenizers")
            works = [partial(self._write, number, tokenizers, pool) for number in range(len(stage_names))]
            reports = [stages.run(name, work) for name, work in zip(stage_names, works, strict=True)]
        self._complete(stages, stage_names, tokenizers)
        self._inputs.check_unchanged()
        return write_manifest(
            self._staging,
            settings=settings,
            inputs=self._inputs.entries,
            corpora=reports[:-1],
            dev=reports[-1],
            vocabulary_sizes=(tokenizers.source.size, tokenizers.target.size),
            vocabulary_characters=(alphabet_size(tokenizers.source), alphabet_size(tokenizers.target)),
            files=stages.files,
        )

    def _check(self) -> None:
        """Check what the stages need before the first one runs; UserError if it does not fit the texts."""

    def _make_tokenizers(self) -> None:
        """Save the tokenizers: those of a model, or new ones."""
        if self._data.tokenizer.from_model is None:
            self._train_tokenizers()
            return
        folder = _given_folder(self._data)
        given, shared = Tokenizers.load(folder), self._data.is_language_model or self._data.tokenizer.shared
        if given.shared != shared:
            raise UserError(
                f"the tokenizers {'are one' if given.shared else 'are two'} for both languages",
                where=f"data.tokenizer.shared; {folder}",
                hint=f"Set it to {str(given.shared).lower()}.",
            )
        for number, tag in enumerate(corpus.tag_token for corpus in self._data.train):
            ids = [] if tag is None else given.source.encode(tag)
            if tag is not None and (len(ids) != 1 or UNK in ids):
                raise UserError(
                    f"the vocabulary of the model has no token {tag}",
                    where=f"data.train.{number}.tag; {folder}",
                    hint="Leave the tag out, or learn a vocabulary: remove data.tokenizer.from_model.",
                )
        shutil.copytree(folder, self._staging / "tokenizers", dirs_exist_ok=True)

    def _train_tokenizers(self) -> None:
        """Train the tokenizers on all training corpora, each once, whatever its weight, and save them."""
        raise NotImplementedError

    def _write(self, number: int, tokenizers: Tokenizers, pool: EncoderPool) -> dict[str, Any]:
        """Encode and store a corpus, and return its report; UserError if nothing of it is left."""
        raise NotImplementedError

    def _complete(self, stages: Stages, names: Sequence[str], tokenizers: Tokenizers) -> None:
        """Run the stages after the corpora, which have these names."""

    def _trained(self, *sides: str) -> Tokenizer:
        """Train a tokenizer on the texts of one or several sides of the corpora."""
        options = tokenizer_settings(self._data)
        total = sum(map(len, self._chosen[:-1]))
        corpora = [*zip(self._data.train, self._chosen, strict=False)]
        lines = chain.from_iterable(
            read_chosen_parts(corpus.files[side], chosen) for side in sides for corpus, chosen in corpora
        )
        sampled = sample_lines(lines, total=total * len(sides), wanted=options.max_training_lines)
        return train_tokenizer(options, progress_over(sampled, "learning the vocabulary", shown=self._progress))


class _TextPreparation(_Preparation):
    """The preparation of the texts of a language model."""

    def _train_tokenizers(self) -> None:
        tokenizer = self._trained("text")
        Tokenizers(tokenizer, tokenizer, shared=True).save(self._staging / "tokenizers")

    def _write(self, number: int, tokenizers: Tokenizers, pool: EncoderPool) -> dict[str, Any]:
        corpus, name, directory = self._corpora[number], self._names[number], self._directories[number]
        chosen = self._chosen[number]
        total, lines = self._inputs.characters[number], read_chosen_parts(corpus.text, chosen)
        with (
            TextWriter(directory, name=name, tokenizer=tokenizers.target) as writer,
            progress_bar(f"encoding {name}", total, unit="character", shown=self._progress) as advance,
        ):
            for batch in bounded_batches(lines, lambda line: line.characters):
                writer.append(batch)
                advance(sum(line.characters for line in batch))
        ids = TextDataset(directory).ids
        report = TextReport(
            name=name,
            weight=corpus.weight,
            lines=len(chosen),
            characters=writer.counts.characters,
            tokens=len(ids),
            unknown=count_token(ids, UNK),
        )
        return asdict(report)


class _PairPreparation(_Preparation):
    """The preparation of the sentence pairs of a translation."""

    def _check(self) -> None:
        if self._tags is not None:
            self._tags.check(self._progress)

    def _complete(self, stages: Stages, names: Sequence[str], tokenizers: Tokenizers) -> None:
        for number, corpus in enumerate(self._data.train):
            if corpus.alignments is not None:
                stages.run(f"alignments of {names[number]}", partial(self._write_links, number, tokenizers))
        stages.run("validation text", self._write_dev_text)
        stages.run("features", partial(self._fit_features, tokenizers))
        if self._features:
            features = FeatureSet.load(self._staging / "features", tokenizers)
            for number, name in enumerate(names):
                stages.run(f"features of {name}", partial(self._write_features, number, features, tokenizers))

    def _train_tokenizers(self) -> None:
        def train(name: str, *sides: str) -> Tokenizer:
            try:
                return self._trained(*sides)
            except UserError as error:
                error.message = f"{name}: {error.message}"
                raise

        if tokenizer_settings(self._data).shared:
            both = train("both languages", "source", "target")
            tokenizers = Tokenizers(both, both, shared=True)
        else:
            tokenizers = Tokenizers(train("source", "source"), train("target", "target"), shared=False)
        tokenizers.save(self._staging / "tokenizers")

    def _write(self, number: int, tokenizers: Tokenizers, pool: EncoderPool) -> dict[str, Any]:
        """Encode, filter and store a corpus. All validation pairs are kept; their sources are truncated like others."""
        corpus, name, directory = self._corpora[number], self._names[number], self._directories[number]
        counts = FilterCounts()
        sizes = (tokenizers.source.size, tokenizers.target.size)
        aligned = number < len(self._data.train) and corpus.alignments is not None
        more: dict[str, Any] = {"features": self._features, "aligned": aligned}
        with DatasetWriter(directory, name=name, source_size=sizes[0], target_size=sizes[1], **more) as writer:
            documents = self._append(number, tokenizers, pool, counts, writer)
        if not counts.kept:
            removed = ", ".join(f"{count:,} by {reason}" for reason, count in counts.removed.items())
            raise UserError(
                f"the filters remove all {counts.read:,} pairs of corpus {name!r}",
                where="data.filters",
                hint=f"Removed: {removed}.",
            )
        dataset = Dataset(directory, with_features=False)
        source, target = dataset.source_ids, dataset.target_ids
        unknown = {"source_unknown": count_token(source, UNK), "target_unknown": count_token(target, UNK)}
        report = CorpusReport(name, corpus.weight, counts, len(source), len(target), **unknown)
        if documents is not None:
            report = replace(report, documents=documents, blocks=len(dataset))
        values = {key: value for key, value in asdict(report).items() if value is not None}
        if not counts.examples:  # as in data that were prepared before there were examples
            del values["counts"]["examples"]
        return values

    def _append(
        self, number: int, tokenizers: Tokenizers, pool: EncoderPool, counts: FilterCounts, writer: DatasetWriter
    ) -> int | None:
        """Store the pairs of a corpus, or its blocks; returns the number of documents if their ids are known."""
        if self._data.documents is None:
            for found in pool.blocks(self._texts(number, counts), self._encoder(number, tokenizers)):
                counts.add(found.counts)
                writer.append_packed(found.source, found.target, found.lines)
            return None
        documents = 0
        last: Hashable = None
        blocks = self._packed(number, tokenizers, counts)
        for group in bounded_batches(blocks, lambda block: sum(map(len, block.texts))):
            source, target = zip(*(block.ids for block in group), strict=True)
            writer.append(source, target, [block.first for block in group])
            for block in group:
                documents, last = documents + (block.document != last), block.document
        return documents if self._corpora[number].documents is not None else None

    def _encoded(
        self, number: int, tokenizers: Tokenizers, counts: FilterCounts
    ) -> Iterator[tuple[NumberedPairs, EncodedPairs]]:
        """Encode and filter a corpus block by block: the texts of all pairs, and the pairs that the filters keep."""
        encoder = self._encoder(number, tokenizers)
        for block in self._texts(number, counts):
            yield block, encoder.pairs(block, counts)

    def _texts(self, number: int, counts: FilterCounts) -> Iterator[NumberedPairs]:
        """Read the pairs of a corpus in blocks; updates ``counts`` with those that are repeated."""
        corpus, chosen = self._corpora[number], self._chosen[number]
        repeated = self._data.filters.duplicates and number < len(self._data.train)
        name = f"encoding {self._names[number]}"
        with progress_bar(name, len(chosen), unit="line", shown=self._progress) as advance:
            for block in read_chosen_pairs(corpus, chosen, counts, duplicates=repeated):
                yield block
                advance(len(block.lines))

    def _encoder(self, number: int, tokenizers: Tokenizers) -> BlockEncoder:
        """The encoder of a corpus: all validation pairs are kept."""
        keeps_all, tag = number == len(self._data.train), self._corpora[number].tag_token
        single = self._processes == 1
        return BlockEncoder(tokenizers, self._data.filters, keeps_all, single, tag=tag, by_text=self._by_text)

    def _packed(
        self, number: int, tokenizers: Tokenizers, counts: FilterCounts, tags: Iterable[TaggedSentence] | None = None
    ) -> Iterator[DocumentBlock]:
        """Pack a corpus into blocks; without document ids every pair is a block.

        Args:
            tags: of every line of the source.

        Raises:
            UserError: a text contains the separator; or as `BlockPacker`.
        """
        options, corpus = self._data.documents, self._corpora[number]
        assert options is not None
        packer = BlockPacker((tokenizers.source, tokenizers.target), options.separator, options.max_length)

        def sentences() -> Iterator[BlockSentence]:
            ids: Iterator[Hashable] = count() if corpus.documents is None else read_document_ids(corpus.documents)
            given = enumerate(zip(ids, repeat(None) if tags is None else tags, strict=False))
            for block, pairs in self._encoded(number, tokenizers, counts):
                places = {line: place for place, line in enumerate(block.lines)}
                for line, *sides in zip(pairs.lines, pairs.source, pairs.target, strict=True):
                    document, sentence_tags = next(each for other, each in given if other == line)
                    own = tuple(lines[places[line]] for lines in block.texts)
                    sentence = BlockSentence(line, document, own, tuple(sides), sentence_tags)
                    if packer.holds_separator(sentence):
                        raise UserError(
                            f"the text contains the separator '{options.separator}' of the blocks",
                            where=f"{corpus.source} or {corpus.target}, line {line + 1:,}",
                            hint="Choose another word as `data.documents.separator`.",
                        )
                    yield sentence

        return packer.blocks(sentences())

    def _write_links(self, number: int, tokenizers: Tokenizers) -> None:
        """Store the word alignments of a corpus as links between the tokens of its pairs."""
        corpus, dataset = self._corpora[number], Dataset(self._directories[number], with_features=False)
        rows = read_parallel([corpus.source, corpus.target, corpus.alignments or ""])
        kept = dict(zip(dataset.line_numbers.tolist(), dataset.source_lengths.tolist(), strict=True))

        def links() -> Iterator[Any]:
            for line, (source, target, marks) in enumerate(rows):
                if line in kept:
                    found = parse_links(marks, f"{corpus.alignments}, line {line + 1:,}")
                    sides = zip((source, target), (tokenizers.source, tokenizers.target), strict=True)
                    places = (places_of_spans(text, each.spans(text), word_spans(text)) for text, each in sides)
                    pairs = token_links((*found.sure, *found.possible), *places)
                    yield pairs[pairs[:, 1] < kept[line] - 1]  # the end of a long source may be cut

        write_links(dataset.directory, links())

    def _write_dev_text(self) -> None:
        for file, path in zip(DEV_TEXT, (self._data.dev.source, self._data.dev.target), strict=True):
            write_lines(self._staging / file, read_lines(path))
        if self._tags is not None:
            write_lines(self._staging / DEV_TAGS, self._tags.dev_lines())
        if self._data.dev.documents is not None:
            write_lines(self._staging / DEV_DOCUMENTS, read_document_ids(self._data.dev.documents))

    def _fit_features(self, tokenizers: Tokenizers) -> None:
        """Fit the features on the stored training data."""
        corpora = [Dataset(directory, with_features=False) for directory in self._directories[:-1]]
        tagger = self._tags.source_tagger(tokenizers.source) if self._tags is not None else None
        FeatureSet.fit(self._features, tokenizers, corpora, tagger).save(self._staging / "features")

    def _write_features(self, number: int, features: FeatureSet, tokenizers: Tokenizers) -> None:
        """Store the values of the features of a corpus."""
        dataset = Dataset(self._directories[number], with_features=False)
        needs_text = features.needs_text
        lines, tags = self._text(number, features, tokenizers, dataset) if needs_text else (iter(()), None)
        tokens = _FEATURE_TOKENS if self._tags is None else _TAGGED_TOKENS
        with progress_bar(f"features of {dataset.name}", len(dataset), unit="line", shown=self._progress) as advance:

            def values() -> Iterator[Any]:
                for first, last in dataset.spans(tokens):
                    offsets = dataset.source_offsets
                    ids = dataset.source_ids[offsets[first] : offsets[last]].astype("int64")
                    texts = [next(lines) for _ in range(first, last)] if needs_text else []
                    given = [next(tags) for _ in range(first, last)] if tags is not None else None
                    yield features.compute_all(ids, texts, given)
                    advance(last - first)

            write_features(dataset.directory, features.names, values())
        tagger = features.source_tagger
        if tagger is not None and (note := tagger.alignment_note(dataset.name)):
            notify(note)

    def _text(
        self, number: int, features: FeatureSet, tokenizers: Tokenizers, dataset: Dataset
    ) -> tuple[Iterator[str], Iterator[TaggedSentence] | None]:
        """The stored source texts and their tags: given tags, or those of packed sentences, which are tagged singly."""
        source = self._corpora[number].source
        given = self._tags.given(number) if self._tags is not None else None
        if self._data.documents is None:
            return _kept(read_lines(source), dataset), _kept(given, dataset) if given is not None else None
        if given is None and features.source_tagger is not None:
            given = map(features.source_tagger.tag, read_lines(source))
        ours, theirs = tee(self._packed(number, tokenizers, FilterCounts(), given))
        tags = (block.tags for block in theirs if block.tags is not None)
        return (block.texts[0] for block in ours), tags if given is not None else None


def sample_lines(lines: Iterable[LinePart], *, total: int, wanted: int) -> Iterator[str]:
    """A uniform random sample, always the same, of at most ``wanted`` of ``total`` lines, in order, with all parts.

    Selection sampling: Knuth, The Art of Computer Programming, volume 2, algorithm 3.4.2 S.
    """
    generator, begins, chosen = random.Random(_SAMPLE_SEED), True, False
    for part in lines:
        if begins:
            chosen = total * generator.random() < wanted
            total, wanted = total - 1, wanted - chosen
        if chosen:
            yield part.text
        begins = part.ends


def _kept(items: Iterable[T], dataset: Dataset) -> Iterator[T]:
    """The items of a corpus, one for each line, that belong to the pairs that the filters kept."""
    numbered = enumerate(items)
    for wanted in dataset.line_numbers:
        yield next(item for number, item in numbered if number == wanted)
