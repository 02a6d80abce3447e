"""Trials: candidates translate the same lines in turns with the reference, and what was measured is kept.

A turn of a candidate stands beside a turn of the reference model at nearly the same time: of a machine that other
programs slow down, the ratio of the two is left. A trial is a file, by the hash of everything that it depends on.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from statistics import median

import torch

from sparsenmt.assemble.bundle import Bundle, check_identity, open_model
from sparsenmt.assemble.model_directory import READ, WEIGHTS, WEIGHTS_HINT
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.tokenizer import SHORTLIST
from sparsenmt.decoding.decoding_time import WARM_UP_LINES
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.engine.numerics import numerics
from sparsenmt.model.depth_plan import Depth, DepthPlan
from sparsenmt.process.devices import use_threads
from sparsenmt.process.progress import progress_bar
from sparsenmt.process.resident_memory import forget_peak, peak_resident_bytes, resident_bytes
from sparsenmt.process.runtime import trim_heap
from sparsenmt.recipe.choices import OWN_SHORTLIST
from sparsenmt.recipe.schema import Decoding
from sparsenmt.storage.files import make_directories, sha256_file, sha256_text
from sparsenmt.storage.kept_work import KeptWork, request_digest
from sparsenmt.storage.records import list_files
from sparsenmt.storage.tensors import tensor_sizes
from sparsenmt.workflows.conversion.shortlist import ShortlistRequest, make_shortlist
from sparsenmt.workflows.conversion.slice import slice_model
from sparsenmt.workflows.conversion.vocabulary_slice import VocabularyTexts
from sparsenmt.workflows.decoding.input_text import warn_of_single_lines
from sparsenmt.workflows.plan.candidate import OF_CORPUS, PlanCandidate, PlanModel, decoding_of

_FORMAT = 2
TOGETHER = 6  # candidates that share a turn of the reference
_ALONE = 8  # lines that are translated one by one


@dataclass(frozen=True)
class PlanTrial:
    """The measurement of a candidate on some lines.

    Args:
        translations: of the first turn.
        tokens: target tokens of the translations, `</s>` included.
        seconds, reference_seconds: of every turn, of the candidate and of the reference beside it.
        line_seconds: of every turn, the median of lines that are translated alone; empty: not measured.
        memory: peak resident bytes of a process that decodes with the candidate alone, estimated; None: not known.
    """

    translations: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    reference_seconds: list[float] = field(default_factory=list)
    line_seconds: list[float] = field(default_factory=list)
    memory: int | None = None

    @property
    def speeds(self) -> tuple[float, ...]:
        """The reference's seconds over the candidate's, of each turn."""
        return tuple(b / a for a, b in zip(self.seconds, self.reference_seconds, strict=True))

    @property
    def latency(self) -> float | None:
        """The seconds of a line that is translated alone, in the fastest turn."""
        return min(self.line_seconds, default=None)


@dataclass(frozen=True)
class ReadyModel:
    """A model directory and the shortlist with which a candidate decodes."""

    directory: Path
    shortlist: Path | None

    def size(self, plan: DepthPlan, depth: Depth) -> int:
        """Return the bytes of the directory of the model that is cut to a depth, shortlist included."""
        files = [path for name, path in list_files(self.directory).items() if name.split("/")[0] in READ]
        replaced = {WEIGHTS} if self.shortlist is None else {WEIGHTS, SHORTLIST}
        whole = sum(path.stat().st_size for path in files if path.name not in replaced)
        added = 0 if self.shortlist is None else self.shortlist.stat().st_size
        tensors = tensor_sizes(self.directory / WEIGHTS, hint=WEIGHTS_HINT)
        return whole + added + sum(size for name, (_, size) in tensors.items() if _is_kept(name, plan, depth))


def _is_kept(name: str, plan: DepthPlan, depth: Depth) -> bool:
    """Return True if a weight belongs to the layers of a depth, or to no layer."""
    side, *parts = name.split(".")
    if side not in ("encoder", "decoder") or parts[0] not in ("layers", "steps"):
        return True
    steps, number = getattr(plan, side)[: depth[side == "decoder"]], int(parts[1])
    return number in steps if parts[0] == "layers" else number < len(steps)


class Workshop:
    """The cut models and shortlists of a plan, each made once, in a folder that later runs use again.

    Args:
        folder: where they are written.
        cuts_depths: cut models also where a candidate only runs fewer layers: its memory is that of the cut model.
    """

    def __init__(self, folder: Path, *, cuts_depths: bool = False) -> None:
        self.folder, self.cuts_depths, self._hash = folder, cuts_depths, cache(sha256_file)

    def ready(self, candidate: PlanCandidate, model: PlanModel) -> ReadyModel:
        """Return the files with which a candidate decodes; those that are missing are made."""
        directory, options, name = model.directory, decoding_of(candidate, model), model.label.replace("/", "-")
        layers = model.depths.depth(options.encoder_layers, options.decoder_layers)
        texts: VocabularyTexts | None = None
        if candidate.get("vocabulary") == OF_CORPUS:
            name, texts = f"{name}-cut", VocabularyTexts((), *zip(*model.corpora, strict=True))
        if texts is not None or (self.cuts_depths and layers != model.depths.depth(None, None)):
            directory = self.folder / f"{name}-{layers[0]}-{layers[1]}-{self.digest(model)}"
            if not directory.exists():
                slice_model(
                    model.directory, directory, encoder_layers=layers[0], decoder_layers=layers[1], vocabulary=texts
                )
        shortlist = options.shortlist_file if texts is None else None
        if candidate.get("shortlist") == OF_CORPUS:
            shortlist = self.folder / f"{name}-{self.digest(model)}.shortlist"
            if not shortlist.exists():
                make_directories(self.folder)
                make_shortlist(ShortlistRequest(directory, model.corpora, shortlist, device="cpu"))
        return ReadyModel(directory, shortlist)

    def options(self, candidate: PlanCandidate, model: PlanModel) -> Decoding:
        """Return the decoding options of a candidate, with the file of its shortlist."""
        options, shortlist = decoding_of(candidate, model), self.ready(candidate, model).shortlist
        if shortlist is not None:
            return options.model_copy(update={"shortlist": str(shortlist)})
        if candidate.get("vocabulary") == OF_CORPUS and options.shortlist_file is not None:  # it was cut with it
            return options.model_copy(update={"shortlist": OWN_SHORTLIST})
        return options

    def digest(self, model: PlanModel) -> str:
        """Return the hash of the model, the shortlist that its recipe names, and the corpora."""
        named = model.recipe.decoding.shortlist_file
        texts = [[self._hash(path) for path in pair] for pair in (*model.corpora, () if named is None else (named,))]
        return request_digest({"model": model.identity.digest, "texts": texts})[:12]


class Trials:
    """The trials of a plan on its text.

    Args:
        models: by label.
        reference: the candidate beside which all others are timed.
        sources: the lines, in the order in which rounds take them.
        folder: of the kept trials.
        turns: of each candidate in a round.
        languages: of source and target, as for `open_model`.
    """

    def __init__(
        self,
        models: Mapping[str, PlanModel],
        reference: PlanCandidate,
        sources: Sequence[str],
        folder: Path,
        workshop: Workshop,
        *,
        turns: int = 3,
        languages: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.models, self.reference, self.sources = models, reference, list(sources)
        self.folder, self.workshop, self.turns, self.languages = folder, workshop, turns, languages
        device = models[reference.model].device
        self._floor, self._numerics = _resident(device), numerics(device)

    def measure(
        self, candidates: Sequence[PlanCandidate], lines: int, *, alone: bool
    ) -> dict[PlanCandidate, PlanTrial]:
        """Return the trials of candidates on the first lines; turns that are kept are not measured again.

        Args:
            alone: time lines that are translated alone, too.
        """
        kept = {each: self._kept(each, lines, alone=alone) for each in candidates}
        found = {each: record.find() or PlanTrial() for each, record in kept.items()}
        turns = sum(min(len(trial.seconds), self.turns) for trial in found.values())
        total = self.turns * len(candidates)
        make_directories(self.folder)
        with progress_bar(f"plan: {lines:,} lines", total, unit="turn", done=turns) as advance:
            for turn in range(self.turns):
                todo = [each for each in candidates if len(found[each].seconds) <= turn]
                for candidate, made in self._turns(todo, found, self.sources[:lines], alone=alone):
                    found[candidate] = made
                    kept[candidate].write(**asdict(made))
                    advance(1)
        return found

    def size(self, candidate: PlanCandidate) -> int:
        """Return the bytes of the model directory that a candidate would be."""
        model = self.models[candidate.model]
        options = decoding_of(candidate, model)
        depth = model.depths.depth(options.encoder_layers, options.decoder_layers)
        return self.workshop.ready(candidate, model).size(model.depths, depth)

    def reference_seconds(self, lines: int) -> float:
        """Return the seconds that the reference takes for the first lines, measured now."""
        return self._seconds(*self._reference, self.sources[:lines])

    def _threads(self, candidate: PlanCandidate) -> int:
        """Return the CPU threads of a candidate."""
        model = self.models[candidate.model]
        return decoding_of(candidate, model).threads or model.threads

    def _kept(self, candidate: PlanCandidate, lines: int, *, alone: bool) -> KeptWork[PlanTrial]:
        """Return the file of a trial, whether it is written or not."""
        model, reference = self.models[candidate.model], self.models[self.reference.model]
        asked = {
            "format": _FORMAT,
            "model": model.identity.digest,
            "decoding": self.workshop.options(candidate, model).recorded(),
            "choices": [[name, value] for name, value in candidate.choices],
            "corpora": self.workshop.digest(model) if OF_CORPUS in dict(candidate.choices).values() else None,
            "cut": self.workshop.ready(candidate, model).directory != model.directory,
            "reference": [reference.identity.digest, decoding_of(self.reference, reference).recorded()],
            "text": sha256_text("\n".join(self.sources[:lines])),
            "languages": list(self.languages),
            "alone": alone,
            "threads": [self._threads(candidate), self._threads(self.reference)],
            "numerics": self._numerics,
        }
        return KeptWork(self.folder / f"{request_digest(asked)[:16]}.json", asked, PlanTrial)

    def _turns(
        self,
        candidates: Sequence[PlanCandidate],
        found: Mapping[PlanCandidate, PlanTrial],
        lines: Sequence[str],
        *,
        alone: bool,
    ) -> Iterator[tuple[PlanCandidate, PlanTrial]]:
        """Yield the candidates with one turn more each; those of one opened model follow one another."""

        def opening(each: PlanCandidate) -> tuple[str, ...]:
            directory = self.workshop.ready(each, self.models[each.model]).directory
            return each.model, str(directory), *(str(each.get(axis)) for axis in ("dtype", "threads"))

        ordered = sorted(candidates, key=lambda each: (opening(each), str(each)))
        beside = 0.0
        for _, group in groupby(enumerate(ordered), key=lambda each: opening(each[1])):
            members = list(group)
            opened = self._opened(members[0][1])
            for number, candidate in members:
                if number % TOGETHER == 0:
                    beside = self._seconds(*self._reference, lines)
                yield candidate, self._turn(candidate, opened, found[candidate], lines, beside, alone=alone)
            del opened  # before the next model is opened

    def _opened(self, candidate: PlanCandidate) -> _OpenedModel:
        """Open the model of a candidate, with its threads; the memory that was resident before is noted."""
        model, threads = self.models[candidate.model], self._threads(candidate)
        ready, dtype = self.workshop.ready(candidate, model), decoding_of(candidate, model).dtype
        _ = self._reference  # is resident before
        gc.collect()
        trim_heap()
        before = _resident(model.device)
        try:
            use_threads(threads)
            bundle = open_model(ready.directory, device=model.device, dtype=dtype, languages=self.languages)
            if ready.directory == model.directory:
                check_identity(bundle, model.identity, model.directory)
        finally:
            use_threads(self._threads(self.reference))
        return _OpenedModel(bundle, before, threads)

    def _turn(
        self,
        candidate: PlanCandidate,
        opened: _OpenedModel,
        trial: PlanTrial,
        lines: Sequence[str],
        beside: float,
        *,
        alone: bool,
    ) -> PlanTrial:
        """Return the trial with one turn more; ``beside``: seconds of the reference."""
        bundle, options = opened.bundle, self.workshop.options(candidate, self.models[candidate.model])
        use_threads(opened.threads)
        bundle.engine.release()
        trim_heap()
        if bundle.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(bundle.device)
        forget_peak()
        outputs: list[tuple[str, int]] = []
        seconds = self._seconds(bundle, options, lines, outputs)
        single = [line for line in lines if line.strip()][:_ALONE] if alone else []
        times = [self._seconds(bundle, options, [line]) for line in single]
        memory = self._memory(bundle, opened.before)
        use_threads(self._threads(self.reference))
        first = not trial.seconds
        return replace(
            trial,
            translations=[text for text, _ in outputs] if first else trial.translations,
            tokens=sum(count for _, count in outputs) if first else trial.tokens,
            seconds=[*trial.seconds, seconds],
            reference_seconds=[*trial.reference_seconds, beside],
            line_seconds=[*trial.line_seconds, *([median(times)] if times else [])],
            memory=memory if trial.memory is None or memory is None else min(memory, trial.memory),
        )

    def _seconds(
        self, bundle: Bundle, options: Decoding, lines: Sequence[str], outputs: list[tuple[str, int]] | None = None
    ) -> float:
        """Translate lines after a few for warming up; returns the seconds, and adds texts and tokens to ``outputs``."""
        if len(lines) > 1:
            list(translate_lines(bundle, input_lines(lines[:WARM_UP_LINES]), options))
        began = time.perf_counter()
        found = list(translate_lines(bundle, input_lines(lines), options))
        seconds = time.perf_counter() - began
        if outputs is not None:
            outputs += [(each.text, len(each.hypotheses[0].tokens) + each.hypotheses[0].ended) for each in found]
        return seconds

    @cached_property
    def _reference(self) -> tuple[Bundle, Decoding]:
        """The opened model of the reference, and its options."""
        model = self.models[self.reference.model]
        options = decoding_of(self.reference, model)
        use_threads(self._threads(self.reference))
        opened = open_model(model.directory, device=model.device, dtype=options.dtype, languages=self.languages)
        check_identity(opened, model.identity, model.directory)
        warn_of_single_lines(opened)
        return opened, options

    def _memory(self, bundle: Bundle, before: int | None) -> int | None:
        """Return the peak memory of the turn, without what was resident ``before`` the model was opened."""
        on_device = bundle.device.type == "cuda"
        peak = int(torch.cuda.max_memory_allocated(bundle.device)) if on_device else peak_resident_bytes()
        return None if peak is None or before is None or self._floor is None else self._floor + max(peak - before, 0)


@dataclass(frozen=True)
class _OpenedModel:
    """A model that is open for the turns of several candidates; ``before``: bytes that were resident before it was."""

    bundle: Bundle
    before: int | None
    threads: int


def _resident(device: torch.device) -> int | None:
    """Return the bytes that are resident now, of a GPU those on it."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else resident_bytes()
