"""Verify a trained model, and write its certificate: which files, and which equalities hold with which figures."""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

import sparsenmt
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_card import CERTIFICATE, write_model_card
from sparsenmt.assemble.model_directory import READ, read_manifest
from sparsenmt.data.text import check_readable, read_lines
from sparsenmt.data.vocabulary import EOS, SPECIAL_TOKENS
from sparsenmt.engine.numerics import numerics
from sparsenmt.errors import UserError
from sparsenmt.export.model_export import export_model
from sparsenmt.importers.programs import read_foreign_model
from sparsenmt.process.devices import use_threads
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.schema import ModelSection
from sparsenmt.report.tables import Report, Table, Value, columns
from sparsenmt.storage.files import hidden_path, read_sealed, sha256_text, write_sealed
from sparsenmt.storage.kept_work import KeptWork, joined
from sparsenmt.storage.records import file_entry, list_files, typed
from sparsenmt.testing.checks import EXACT
from sparsenmt.testing.trained_model import CHECKS, Check, Figure, TrainedModel, difference, log_probabilities

FORMAT = 1
_LONGEST, _SHORTEST = 24, 3  # tokens of a line that is made from the vocabulary
_HINT = "Remove it, and verify the model again."
_EXPORT = "safetensors-hf"
Entries = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Figures:
    """Check -> its figures, of the checks that are finished."""

    checks: dict[str, list[Figure]]


@dataclass(frozen=True)
class Certificate:
    """The result of `verify`, as it is in ``certificate.json``, sealed.

    Args:
        asked: version, files with their hashes, text, and the numerics of the machine.
        checks: name of a check -> its figures; none: it says nothing about such a model.
    """

    asked: dict[str, Any]
    checks: dict[str, list[Figure]]
    holds: bool

    def report(self) -> Report:
        """Return the figures as a table."""
        rows: list[tuple[Value, ...]] = []
        for figure in chain.from_iterable(self.checks.values()):
            values, result = (figure.measured, figure.allowed), "holds" if figure.holds else "FAILS"
            rows.append((figure.check, figure.case, *values, *map(_shown, values), result))
        described = columns("text check case", "hidden number measured allowed", "text figure tolerance result")
        silent = [name for name, figures in self.checks.items() if not figures]
        notes = [f"does not apply to this model: {', '.join(silent)}"] if silent else []
        return Report("verify", (Table("figures", "Equalities", described, rows),), tuple(notes), self.asked["text"])


def verify(
    directory: Path,
    *,
    source: Path | None = None,
    lines: int = 16,
    seed: int = 1,
    renew: bool = False,
    threads: int | None = None,
) -> Certificate:
    """Check a model directory, and write its certificate; what an interrupted run has finished is kept.

    Args:
        source: text to check on; None: lines made from the vocabulary.
        lines: number of lines of the text, from its beginning, or to make.
        seed: of lines and targets that are made.
        renew: certify the model as it is now, whatever an earlier certificate says.
        threads: CPU threads; None: all cores.

    Raises:
        UserError: the directory is no model or damaged, or was changed since it was certified.
    """
    use_threads(threads)
    if source is not None:
        check_readable(source)
    bundle = open_model(directory, device=torch.device("cpu"), dtype=None, any_task=True)
    files = _files(directory)
    if not renew:
        check_certificate(directory, files)
    model, text = _with_text(bundle, source, lines, seed)
    asked = {
        "format": FORMAT,
        "sparsenmt": sparsenmt.__version__,
        "files": files,
        "weights": bundle.weights_digest,
        "text": text,
        "numerics": numerics(torch.device("cpu")),
    }
    path = directory / CERTIFICATE
    kept = KeptWork(hidden_path(path, "journal"), asked, _Figures)
    found = kept.find()
    done = {} if found is None else dict(found.checks)
    checks: dict[str, Check] = {**CHECKS, "export": check_export}
    with progress_bar("verifying", len(checks), unit="check", done=len(done)) as advance:
        for name, check in checks.items():
            if name not in done:
                done[name] = list(check(model))
                kept.write(checks=_record(done))
                advance(1)
    if _files(directory) != files:
        raise UserError("the model was changed while it was verified", where=str(directory), hint="Verify it again.")
    holds = all(figure.holds for figure in chain.from_iterable(done.values()))
    write_sealed(path, {"asked": asked, "checks": _record(done), "holds": holds})
    kept.path.unlink(missing_ok=True)
    write_model_card(directory)
    return Certificate(asked, done, holds)


def _shown(value: float) -> str:
    """A difference, as 1.2e-05, or a number of lines."""
    return f"{value:g}" if math.isfinite(value) and value == int(value) else f"{value:.1e}"


def _record(checks: Mapping[str, Sequence[Figure]]) -> dict[str, Any]:
    return {name: [asdict(figure) for figure in figures] for name, figures in checks.items()}


def _files(directory: Path) -> Entries:
    """Size and hash of every file that using the model reads."""
    read_manifest(directory)  # links are refused
    return {name: file_entry(path) for name, path in list_files(directory).items() if name.split("/")[0] in READ}


def check_certificate(directory: Path, files: Entries) -> None:
    """Check a stored certificate, if there is one, against the files of a model directory.

    Raises:
        UserError: it was made of other files.
        DamagedFileError: it was changed.
    """
    path = directory / CERTIFICATE
    if not path.exists():
        return
    found = typed(read_sealed(path, hint=_HINT), Certificate, path, hint=_HINT)
    stored = typed(found.asked.get("files"), dict[str, dict[str, Any]], path, hint=_HINT)
    changes = {
        name: "is gone" if name not in files else "is new" if name not in stored else "differs"
        for name in sorted({*stored, *files})
        if stored.get(name) != files.get(name)
    }
    if changes:
        listed = joined([f"{name} {state}" for name, state in changes.items()])
        raise UserError(
            f"the model is not the one that was certified: {listed}",
            where=str(path),
            hint="Take these files from a copy; if the change was meant, --renew verifies the model as it is now.",
        )


def _with_text(bundle: Bundle, source: Path | None, count: int, seed: int) -> tuple[TrainedModel, dict[str, Any]]:
    """The model with the text that it is checked on, and the description of the text; arguments as of `verify`."""
    rng, tokenizers = random.Random(seed), bundle.tokenizers
    most = max(min(_LONGEST, bundle.max_target_length, bundle.max_source_length), 1)

    def drawn(size: int) -> list[int]:
        length = rng.randint(min(_SHORTEST, most), most)
        return [rng.randrange(len(SPECIAL_TOKENS), size) for _ in range(length)]

    if source is None:
        lines = [tokenizers.source.decode(drawn(tokenizers.source.size)) for _ in range(count)]
        lines = [line if line.strip() else "a" for line in lines]
    else:
        filled = (line for line in read_lines(source) if line.strip())
        lines = list(islice(filled, count))
    if not lines:
        raise UserError("there is no text in it", where=str(source), hint="Name a text with lines.")
    targets = [drawn(tokenizers.target.size) for _ in lines]
    if bundle.recipe.data.is_language_model:  # its own text is what it reads
        targets = [ids[:most] for ids in tokenizers.target.encode_batch(lines)]
    name = "made from the vocabulary" if source is None else source.name
    digest = sha256_text("\n".join(lines))
    about = {"name": name, "lines": len(lines), "seed": seed, "sha256": digest}
    return TrainedModel(bundle, tuple(lines), tuple((*ids, EOS) for ids in targets)), about


def check_export(model: TrainedModel) -> Iterator[Figure]:
    """Exported = own, in float64, for the format that is read here without its program; nothing if it is refused."""
    bundle = model.bundle
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "exported"
        try:
            export_model(bundle, output, _EXPORT, bundle.depth)
            found = read_foreign_model(output, ())
        except UserError:  # a model that the format cannot express, or with other tokenizers than it has
            return
    section, tokenizers = ModelSection.model_validate(found.recipe["model"]), found.tokenizers
    made = build_model(section, source_size=tokenizers.source.size, target_size=tokenizers.target.size, seed=0)
    made.load_state_dict(found.weights)
    other = partial(log_probabilities, model, depth=made.plan.deepest)
    read = Bundle(bundle.recipe, bundle.tokenizers, bundle.features, copy.deepcopy(made).double().eval(), bundle.device)
    measured = difference(other(read), log_probabilities(model, model.exact))
    yield Figure("export", _EXPORT, measured, EXACT)
