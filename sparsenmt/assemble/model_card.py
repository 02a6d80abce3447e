"""The model card of a model directory: ``README.md``, from what the directory records of data, recipe and scores.

Its first lines are those that model hubs read. A card without `MARK` belongs to the user, and is never replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsenmt.assemble.methods import chosen_methods
from sparsenmt.assemble.model_directory import (
    WEIGHTS,
    WEIGHTS_HINT,
    parameter_count,
    read_manifest,
    read_recipe,
    weights_digest,
)
from sparsenmt.errors import UserError, printable
from sparsenmt.process.progress import byte_text
from sparsenmt.recipe.method_choice import Site
from sparsenmt.recipe.schema import Corpus, Recipe
from sparsenmt.storage.files import read_sealed, write_text
from sparsenmt.storage.tensors import read_header

CARD, CERTIFICATE = "README.md", "certificate.json"
MARK = "<!-- Written by sparsenmt. Remove this line, and the card stays as you edit it. -->"
RESULTS = "evaluation"
"""The folder of a model directory with measured results."""
_USUAL = {Site().pattern.name, Site().transform.name, "plain"}


def write_model_card(directory: Path) -> None:
    """Write the card of a model directory, or bring it up to date; nothing without weights, or beside a user's own."""
    path = directory / CARD
    with suppress(UserError, OSError):  # a card is no reason to fail
        if not path.is_symlink() and (not path.exists() or MARK.encode() in path.read_bytes()):
            text = model_card(directory)
            if not path.exists() or path.read_bytes() != text.encode():
                write_text(path, text)


def model_card(directory: Path) -> str:
    """The card of a model directory.

    Raises:
        UserError: it is none, or has no weights.
    """
    recipe, manifest = read_recipe(directory), read_manifest(directory)
    imported = manifest.get("imported_from") or {}
    language_model = recipe.data.is_language_model
    verb = "continue or score text" if language_model else "translate"
    command = f"sparsenmt decode {directory.resolve().name} < {'prompts' if language_model else 'source'}.txt"
    size = byte_text((directory / WEIGHTS).stat().st_size)
    weights = f"{parameter_count(directory):,} weights, {size} in fp32"
    return "\n".join(
        [
            *front_matter(recipe),
            MARK,
            f"# {plain_text(recipe.name)}",
            "",
            f"{_task(recipe)}, made by sparsenmt {plain_text(str(manifest['provenance'].get('sparsenmt', '')))}.",
            *("", "```console", f"$ {command}    # {verb}", "```", ""),
            *("## Model", "", *_rows({"weights": weights, **_model(recipe)}), ""),
            *about_training(directory, recipe, manifest),
            *about_scores(directory),
            *_section("Verification", _verification(directory)),
            *_section("What differs from the original", map(plain_text, imported.get("notes", ()))),
            *_section("Warnings", map(plain_text, manifest.get("warnings", []))),
            "`recipe.yaml` has every setting.",
            "",
        ]
    )


def front_matter(recipe: Recipe, library: str = "sparsenmt") -> list[str]:
    """The lines between ``---`` by which model hubs sort models: licence, languages, the program's library, task."""
    data = recipe.data
    codes = [data.target_language] if data.is_language_model else [data.source_language, data.target_language]
    known = [code for code in dict.fromkeys(codes) if code not in ("source", "target")]
    return [
        "---",
        *([f"license: {json.dumps(recipe.license, ensure_ascii=False)}"] if recipe.license else []),
        *([f"language: {json.dumps(known, ensure_ascii=False)}"] if known else []),
        f"library_name: {library}",
        f"pipeline_tag: {'text-generation' if data.is_language_model else 'translation'}",
        "---",
    ]


def about_training(directory: Path, recipe: Recipe, manifest: Mapping[str, Any]) -> list[str]:
    """The section on data and training."""
    data, origin = recipe.data, manifest.get("imported_from")
    if origin is not None:
        return [*_section("Data", [f"Imported from {plain_text(Path(str(origin.get('path', ''))).name)}."])]
    started, provenance, cut = manifest["started_from"], manifest["provenance"], manifest.get("cut_from") or {}
    notes = read_header(directory / WEIGHTS, hint=WEIGHTS_HINT)[1]
    made_of = [number for number in notes.get("made_of", "").split(",") if number]
    rows = {
        "training text": "; ".join(map(_corpus, data.train)),
        "validation text": _corpus(data.dev),
        "tokens": _tokenizer(recipe),
        "started from": Path(str(started["path"])).name if started else "",
        "updates": f"{int(notes['after']):,}" if notes.get("after", "").isdecimal() else "",
        "weights are the mean after": ", ".join(made_of) if len(made_of) > 1 else "",
        "cut from": Path(str(cut.get("path", ""))).name,
        "validation": "" if cut else ", ".join(_validation(manifest.get("average"), made_of)),
        "seed": str(provenance.get("seed", "")),
        "revision": str(provenance.get("git_revision", "")),
        "hash of the recipe": str(provenance.get("recipe_sha256", "")),
    }
    return ["## Data and training", "", *_rows(rows), ""]


def about_scores(directory: Path) -> list[str]:
    """The section on the scores that were measured on texts with these weights; nothing without any."""
    found = list(_scores(directory))
    if not found:
        return []
    lines = ["| text | lines | metric | score | signature |", "| --- | --- | --- | --- | --- |"]
    lines += [_row(cells) for cells, _ in found]
    rates = {text: rate for (text, *_), rate in found if rate is not None}
    sparsity = [f"Sparsity, source positions that filters drop: {rate:.1%} on {text}." for text, rate in rates.items()]
    return ["## Scores", "", *lines, "", *(line for each in sparsity for line in (each, ""))]


def _scores(directory: Path) -> Iterator[tuple[list[str], float | None]]:
    """The scores in the files of results that belong to the weights, as rows, each with the sparsity of its text.

    Damaged files are left out.
    """
    digest = weights_digest(directory)
    for path in sorted((directory / RESULTS).glob("*.json")):
        with suppress(UserError, AttributeError, KeyError, TypeError, ValueError):
            found = read_sealed(path, hint="Score the text again.")
            if found["key"]["weights"] == digest:
                lines, signatures = found.get("lines"), found.get("signatures", {})
                count = f"{len(lines):,}" if isinstance(lines, list) else ""
                for metric, value in found["scores"].items():
                    measured = [metric.partition("|")[0], f"{float(value):.2f}", str(signatures.get(metric, ""))]
                    yield [path.stem.rpartition("-")[0], count, *measured], found.get("sparsity")


def _verification(directory: Path) -> Iterator[str]:
    """The certificate of these weights in a line; nothing if there is none, or it is damaged."""
    with suppress(UserError, AttributeError, KeyError, TypeError):
        found = read_sealed(directory / CERTIFICATE, hint="Verify the model again.")
        asked, figures = found["asked"], [figure for each in found["checks"].values() for figure in each]
        if asked["weights"] == weights_digest(directory):
            kept = sum(figure["measured"] <= figure["allowed"] for figure in figures)
            lines = f"{asked['text']['lines']:,} lines by sparsenmt {plain_text(str(asked['sparsenmt']))}"
            yield f"{kept} of {len(figures)} equalities hold on {lines}: `{CERTIFICATE}`, by `sparsenmt verify`."


def _task(recipe: Recipe) -> str:
    data = recipe.data
    if data.is_language_model:
        return f"A language model of {data.target_language}"
    return f"A translation model from {data.source_language} to {data.target_language}"


def _model(recipe: Recipe) -> dict[str, str]:
    """The architecture, and the methods that are not the usual ones."""
    model = recipe.model
    layers = f"{model.encoder_layers} + {model.decoder_layers}" if model.encoder_layers else f"{model.decoder_layers}"
    methods = [
        f"{key.removeprefix('model.')}: {choice.name}{_options(choice.options)}"
        for key, _, choice in chosen_methods(model)
        if choice.name not in _USUAL
    ]
    return {
        "layers": f"{layers} of dimension {model.dimension}, inner {model.feed_forward}, {model.heads} heads",
        "sparsity methods": "; ".join(methods) or "none",
        "licence": recipe.license or "not given",
    }


def _options(options: Mapping[str, Any]) -> str:
    return f" ({', '.join(f'{key} {value}' for key, value in options.items())})" if options else ""


def _corpus(corpus: Corpus) -> str:
    """Names of files, without their folders, which are of one machine."""
    files = " and ".join(Path(path).name for path in corpus.files.values())
    drawn = "the first" if corpus.lines_seed is None else "a sample of"
    notes = [
        *([] if corpus.lines is None else [f"{drawn} {corpus.lines:,} lines"]),
        *([] if corpus.tag is None else [f"tagged {corpus.tag_token}"]),
        *([] if corpus.weight == 1 else [f"{corpus.weight:g} times"]),
    ]
    named = f"{corpus.name}: {files}" if corpus.name else files
    return ", ".join([named, *notes])


def _tokenizer(recipe: Recipe) -> str:
    tokenizer = recipe.data.tokenizer
    if tokenizer.from_model is not None:
        return f"those of {Path(tokenizer.from_model).name}"
    side = "one vocabulary" if tokenizer.shared or recipe.data.is_language_model else "vocabularies"
    return f"{tokenizer.kind}, {side} of {tokenizer.vocabulary_size:,}"


def _validation(average: Any, made_of: Sequence[str]) -> Iterator[str]:
    """The validation of the weights that were chosen."""
    for candidate in average.get("candidates", ()) if isinstance(average, dict) else ():
        if [str(update) for update in candidate.get("updates", ())] == [*made_of]:
            yield from (f"{name} {value:.2f}" for name, value in candidate.get("values", {}).items())


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"- {line}" for line in lines]
    return [f"## {title}", "", *found, ""] if found else []


def _rows(values: Mapping[str, str]) -> Iterator[str]:
    yield from ("| | |", "| --- | --- |")
    yield from (_row((name, value)) for name, value in values.items() if value)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(plain_text(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def plain_text(text: str) -> str:
    """A text of one line, without control characters and markup: names may come from strangers."""
    return printable(" ".join(text.split())).replace("<", "&lt;")
