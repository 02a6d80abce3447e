"""Cut the vocabularies of a model to the tokens of a text.

The tokens that the model's own tokenizers make of the text stay, on the side of the text, and those that they need
(`Tokenizer.required`). The text is then divided as before, and any other is, too, of the tokens that are left.
Shapes: V tokens, W those that are left, D model dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.documents import separator_id
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.text import bounded_batches, check_readable, read_lines
from sparsenmt.data.text_sides import SIDES, Side
from sparsenmt.data.tokenizers.tokenizer import (
    SHORTLIST,
    ReducedVocabularies,
    Tokenizer,
    Tokenizers,
    reduce_vocabularies,
)
from sparsenmt.decoding.unusual_text import UnusualText
from sparsenmt.errors import UserError, check_lists
from sparsenmt.model.transformer import table_keys
from sparsenmt.process.progress import notify
from sparsenmt.recipe.choices import OWN_SHORTLIST
from sparsenmt.recipe.schema import Decoding, Recipe

_LINES = 1000  # that are tokenized together


@dataclass(frozen=True)
class VocabularyTexts:
    """The texts to whose tokens vocabularies are cut.

    Args:
        both: files whose tokens stay on both sides.
        source, target: files whose tokens stay on one side.
        languages: codes of a multilingual model that stay; none: all.
    """

    both: Sequence[Path] = ()
    source: Sequence[Path] = ()
    target: Sequence[Path] = ()
    languages: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_lists(both=self.both, source=self.source, target=self.target, languages=self.languages)

    def __bool__(self) -> bool:
        return bool(self.both or self.source or self.target or self.languages)

    def files(self, side: Side) -> list[Path]:
        """Return the files of a side."""
        return [*self.both, *(self.source if side == "source" else self.target)]


def cut_vocabularies(bundle: Bundle, texts: VocabularyTexts) -> ReducedVocabularies:
    """Return the vocabularies of the tokens of texts; warns of texts that the model mostly does not know.

    Raises:
        UserError: there is no text, or not of a side that needs one; a language is not the model's; or its tokenizers
            cannot be cut.
    """
    codes = _languages(bundle, texts.languages)
    for path in (files := [*texts.both, *texts.source, *texts.target]):
        check_readable(path)
    if not files:
        raise UserError("there is no text", where="--keep-language", hint="Name a text: --vocabulary FILE.")
    tokenizers = bundle.tokenizers
    if tokenizers.shared:
        for side in SIDES:
            if not texts.files(side):
                raise UserError(
                    f"the model has one vocabulary of both sides, and there is no text of the {side}",
                    where=f"--{'target' if side == 'source' else 'source'}-vocabulary",
                    hint=f"Name one, too: --{side}-vocabulary FILE.",
                )
    source, target = (_tokens(bundle, side, texts) for side in SIDES)
    return reduce_vocabularies(tokenizers, source, target, codes)


def _languages(bundle: Bundle, chosen: Sequence[str]) -> set[str]:
    """Return the codes that stay; UserError if the model does not have one, or its defaults are not among them."""
    frames, options = bundle.tokenizers.frames, bundle.recipe.decoding
    if not chosen:
        return set(frames.languages)
    for code in chosen:
        frames.check_known(code, "--keep-language")
    for default in (options.source_language, options.target_language):
        if default is not None and default not in chosen:
            raise UserError(
                f"the model translates {options.source_language} to {options.target_language} unless other languages "
                f"are given, and {default} is left out",
                where="--keep-language",
                hint=f"Keep it, too: --keep-language {default}.",
            )
    return set(chosen)


def _tokens(bundle: Bundle, side: Side, texts: VocabularyTexts) -> set[int] | None:
    """Return the ids of a side's files, and separators; None: there are no files; UserError if one has no text."""
    if not (files := texts.files(side)):
        return None
    tokenizer: Tokenizer = getattr(bundle.tokenizers, side)
    found: set[int] = set()
    for path in files:
        # A text of both sides may be of either language.
        judged = replace(bundle, text=None) if path in texts.both else bundle
        unusual, number, own = UnusualText(judged, side), 0, set[int]()
        for lines in bounded_batches(read_lines(path), len, most=_LINES):
            for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
                if line.strip(" "):  # some tokenizers make a token of a space
                    own.update(ids)
                    unusual.add(number, ids, line, length=0)  # no line is translated
                number += 1
        if not own:
            raise UserError("the text is empty", where=str(path), hint="Name a text of the sentences to translate.")
        for warning in unusual.warnings(str(path)):
            notify(warning)
        found |= own
    if (documents := bundle.recipe.data.documents) is not None:
        found.add(separator_id(tokenizer, documents.separator))
    return found


def cut_tables(weights: Mapping[str, Tensor], recipe: Recipe, found: ReducedVocabularies) -> dict[str, Tensor]:
    """Return the weights with the rows of tables (V, D) -> (W, D), and of the output's bias, that are left."""
    rows = (found.source_ids, found.target_ids, found.target_ids)
    ids = {f"embeddings.{key}": each for key, each in zip(table_keys(recipe.model.tie_embeddings), rows, strict=True)}
    ids["output_bias"] = found.target_ids
    return {
        name: tensor if (chosen := ids.get(name)) is None else tensor[torch.tensor(chosen)]
        for name, tensor in weights.items()
    }


def cut_shortlist(bundle: Bundle, found: ReducedVocabularies) -> Shortlist | None:
    """Return the shortlist of the tokens that are left: that of the recipe, or otherwise the model's own, if any."""
    options = bundle.recipe.decoding
    if options.shortlist_file is None:
        if bundle.tokenizers.shortlist is None:
            return None
        options = options.model_copy(update={"shortlist": OWN_SHORTLIST})
    shortlist = bundle.shortlist(options)
    if shortlist is None:
        return None
    old = bundle.tokenizers
    source, target = (
        list(range(each.size)) if ids is None else ids
        for each, ids in ((old.source, found.source_ids), (old.target, found.target_ids))
    )
    return shortlist.reduced(source, target, found.tokenizers)


def save_vocabularies(tokenizers: Tokenizers, shortlist: Shortlist | None, directory: Path) -> None:
    """Write tokenizers and their shortlist into the directory of a model's tokenizers."""
    tokenizers.save(directory)
    if shortlist is not None:
        shortlist.save(directory / SHORTLIST)


def recipe_of_cut(recipe: Recipe, output: Path) -> Recipe:
    """Return the recipe of a model with cut vocabularies: data are prepared with these, and lie elsewhere."""
    place = str(output.resolve())
    tokenizer = recipe.data.tokenizer.model_copy(update={"from_model": place})
    data = recipe.data.model_copy(update={"tokenizer": tokenizer, "directory": f"{place}-data"})
    cut = recipe.model_copy(update={"data": data})
    return recipe_with_decoding(cut, recipe.decoding)


def recipe_with_decoding(recipe: Recipe, decoding: Decoding) -> Recipe:
    """Return the recipe with other decoding options at full depth, and a file of a shortlist as the model's own."""
    own = {} if decoding.shortlist_file is None else {"shortlist": OWN_SHORTLIST}
    return recipe.model_copy(update={"decoding": decoding.at(None).model_copy(update=own)})
