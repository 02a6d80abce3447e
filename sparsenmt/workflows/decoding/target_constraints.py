"""Requests about single translations: target prefixes, terms of a glossary, alternatives at a position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.input_line import InputLine, attach_prefixes
from sparsenmt.data.terminology import Glossary
from sparsenmt.decoding.strategies import check_prefixes
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from sparsenmt.storage.files import sha256_file
from sparsenmt.workflows.decoding.input_text import check_companion


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The options of `decode` about single translations.

    Args:
        target_prefix: file with the beginning of each line's translation.
        glossary: file of terms, see `data.terminology`.
        glossary_bonus: what a token of a term adds to the score, in nats; None: terms must stand in the output.
        alternatives: position, from 1, of the word of a translation to which alternatives are wanted.
    """

    target_prefix: Path | None = None
    glossary: Path | None = None
    glossary_bonus: float | None = None
    alternatives: int | None = None

    @property
    def given(self) -> dict[str, object]:
        """Option -> value of those that a model of translations of single lines alone can have."""
        return {
            "--target-prefix": self.target_prefix,
            "--glossary": self.glossary,
            "--alternatives": self.alternatives,
        }

    def check(self) -> None:
        """Raise UserError for options that do not fit one another, and files that cannot be read."""
        check_companion(self.target_prefix, "prefixes")
        check_companion(self.glossary, "terms")
        if self.glossary_bonus is not None and self.glossary is None:
            raise UserError("is given without --glossary", where="--glossary-bonus", hint="Name the glossary, too.")
        if self.glossary_bonus is not None and not 0 < self.glossary_bonus < math.inf:
            what = f"must be a number above 0, not {self.glossary_bonus:g}"
            raise UserError(what, where="--glossary-bonus", hint="Give it in nats, as 1.")
        if self.alternatives is not None and self.alternatives < 1:
            raise UserError(
                f"must be at least 1, not {self.alternatives}", where="--alternatives", hint="Words count from 1."
            )

    def refuse_beside(self, option: str, why: str) -> None:
        """Raise UserError if one is given beside an option that translates otherwise than line by line."""
        for name, value in self.given.items():
            if value is not None:
                raise UserError(f"is given beside {option}, {why}", where=name, hint="Leave one of the two out.")


class TargetConstraints:
    """Target prefixes and terms, read for a model.

    Raises:
        UserError: a file has what the model cannot write, or the search cannot have terms.
    """

    def __init__(self, asked: TargetOptions, bundle: Bundle, options: schema.Decoding) -> None:
        self._asked, self._tokenizer, self._most = asked, bundle.tokenizers.target, bundle.max_target_length
        self._glossary: Glossary | None = None
        for option, value in {"--target-prefix": asked.target_prefix, "--alternatives": asked.alternatives}.items():
            if value is not None:
                check_prefixes(options, option)
        if asked.glossary is not None:
            if options.method != "beam":
                raise UserError(
                    "terms are for beam search", where="--glossary", hint="Leave --method out; --beam-size 1 is greedy."
                )
            language = bundle.recipe.data.target_language
            self._glossary = Glossary(asked.glossary, self._tokenizer, self._most, asked.glossary_bonus, language)

    def attach(self, lines: Iterator[InputLine], name: Path | str, first: int = 0) -> Iterator[InputLine]:
        """Attach prefixes and terms to the lines of a text, line ``first`` (from 0) on.

        Args:
            name: of the text in messages.
        """
        if self._asked.target_prefix is not None:
            lines = attach_prefixes(lines, self._asked.target_prefix, self._tokenizer, self._most, name, first)
        if (glossary := self._glossary) is not None:
            lines = (replace(line, terms=glossary.find(line.text)) for line in lines)
        return lines

    def record(self) -> dict[str, Any]:
        """Return what an output depends on, for its record: nothing where nothing is asked."""
        asked = self._asked
        files = {"target_prefix": asked.target_prefix, "glossary": asked.glossary}
        found: dict[str, Any] = {name: sha256_file(path) for name, path in files.items() if path is not None}
        numbers = {"glossary_bonus": asked.glossary_bonus, "alternatives": asked.alternatives}
        return found | {name: value for name, value in numbers.items() if value is not None}
