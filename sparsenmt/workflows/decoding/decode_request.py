"""The arguments of `decode`, and what must hold between them before a model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from sparsenmt.arguments import check_names, strings_to_paths
from sparsenmt.data.text import StrPath, check_readable
from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.errors import UserError, check_lists
from sparsenmt.recipe import schema
from sparsenmt.recipe.choices import DecodingDtype
from sparsenmt.report.output_files import check_outputs
from sparsenmt.workflows.decoding.aligned_output import AlignmentKind
from sparsenmt.workflows.decoding.ensemble import EnsembleOptions
from sparsenmt.workflows.decoding.input_text import attach, check_companion, read_text
from sparsenmt.workflows.decoding.target_constraints import TargetOptions


@dataclass(frozen=True)
class DecodeRequest(TargetOptions, EnsembleOptions, ModelOptions):
    """The arguments of `decode`; of single translations and of ensembles as in ``TargetOptions``, ``EnsembleOptions``.

    Args:
        input: text to translate; None: standard input.
        output: file to write; None: the lines go to the caller of `decode`.
        tags: part-of-speech tags beside the input.
        documents: document ids beside the input.
        settings: values of `DecodingOptions` that replace the recipe's.
        n_best: hypotheses to write for each line.
        as_json: write a JSON object for each line.
        dtype: of the matrix products; None: the recipe's.
        encoder_layers, decoder_layers: layers that run; None: the recipe's, or all.
        select_depth: let the model's depth selector choose the layers of every line.
        disabled_heads: ``SITE:N,N`` values: heads, from 1, that give zeros.
        window: lines, or blocks of documents, that are read ahead; None: a default that fits the input.
        mix_numerics: resume an output that was begun with other kernels, threads or PyTorch.
        mbr: the metric of minimum Bayes risk; None: the best hypothesis of the search is written.
        mbr_samples: its candidates, where the method is random; None: 16.
        alignments: write the word alignment of each output: links, or (JSON) the weights of attention.
        alignment_head: ``LAYER`` or ``LAYER.HEAD`` of cross-attention, from 1; None: the head that training guided, or
            the mean over the last layer.
        markup: ``xml``: move the inline tags of each line to its translation.
        keep: regular expressions of what translations keep as it is.
    """

    model: Path
    input: Path | None = None
    output: Path | None = None
    tags: Path | None = None
    documents: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    n_best: int = 1
    as_json: bool = False
    dtype: DecodingDtype | None = None
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    select_depth: bool = False
    disabled_heads: tuple[str, ...] = ()
    window: int | None = None
    mix_numerics: bool = False
    mbr: str | None = None
    mbr_samples: int | None = None
    alignments: AlignmentKind | None = None
    alignment_head: str | None = None
    markup: Literal["xml"] | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_lists(disabled_heads=self.disabled_heads, keep=self.keep, ensemble=self.ensemble)
        check_lists(ensemble_depths=self.ensemble_depths, ensemble_weights=self.ensemble_weights)
        strings_to_paths(self)

    @classmethod
    def of(cls, model: StrPath, **options: Any) -> DecodeRequest:
        """Make a request of its fields, and of keys of `decoding` in a recipe: ``beam_size=2``.

        Raises:
            TypeError: there is no such field or key.
        """
        own = {each.name for each in fields(cls)}
        settings = {name: value for name, value in options.items() if name not in own}
        check_names(settings, [*own, *schema.Decoding.model_fields])
        given = {name: value for name, value in options.items() if name in own}
        return cls(Path(model), **{**given, "settings": {**given.get("settings", {}), **settings}})

    @property
    def aligned(self) -> dict[str, Any]:
        """The options for which outputs are aligned with their sources: name -> value, of those that are given."""
        return {name: value for name in ("alignments", "markup", "keep") if (value := getattr(self, name))}

    def _check_aligned(self) -> None:
        if self.alignment_head is not None and not self.aligned:
            hint = "Add --alignments, --markup or --keep; or leave it out."
            raise UserError("changes nothing: outputs are not aligned", where="--alignment-head", hint=hint)
        for name in self.aligned if self.documents is not None else ():
            hint = "Leave one of the two out."
            raise UserError("is given beside --documents, and lines are aligned", where=f"--{name}", hint=hint)
        if self.markup is not None and self.tags is not None:
            hint = "Leave one of the two out."
            raise UserError("is given beside --markup, and tags belong to words", where="--tags", hint=hint)
        if self.glossary is not None and (self.markup is not None or self.keep):
            what = "is given beside --markup or --keep, which read a line otherwise"
            raise UserError(what, where="--glossary", hint="Leave one of the two out.")

    def check(self) -> None:
        """Raise UserError for options and files that do not fit one another, before the model is loaded."""
        EnsembleOptions.check(self)
        for name, used in (("--depth", self.select_depth), ("--documents", self.documents)):
            if used and self.members:
                what = "is given beside an ensemble, which reads single lines with fixed depths"
                raise UserError(what, where=name, hint="Leave one of the two out.")
            if used and self.mbr is not None:
                what = "is given beside --mbr, which chooses among the outputs of single lines at one depth"
                raise UserError(what, where=name, hint="Leave one of the two out.")
        if self.mbr_samples is not None and self.mbr is None:
            raise UserError("is given without --mbr", where="--mbr-samples", hint="Add --mbr chrf, or leave it out.")
        for name in ("mbr", *self.aligned):
            if getattr(self, name) is not None and self.alternatives is not None:
                what = "is given beside --alternatives, which writes words and what follows them"
                raise UserError(what, where=f"--{name}", hint="Leave one of the two out.")
        if self.output is None and sys.stdout is None:
            raise UserError("there is nothing to write to", where="standard output", hint="Name a file with --output.")
        if self.input is None and sys.stdin is None:
            raise UserError("there is nothing to read from", where="standard input", hint="Name a file with --input.")
        file = self.input
        if file is not None and (file.is_fifo() or file.is_char_device()):
            file = None  # cannot be read twice; a terminal may be the output, too
        if file is not None:
            check_readable(file)
        beside = [self.tags, self.documents, self.target_prefix, self.glossary]
        check_outputs({"--output": self.output}, [file, *beside])
        TargetOptions.check(self)
        if self.documents is not None:
            self.refuse_beside("--documents", "which translates blocks of lines")
        undivided = {
            "--tags": self.tags,
            "--documents": self.documents,
            "--alternatives": self.alternatives,
            "--mbr": self.mbr,
        }
        undivided |= {f"--{name}": value for name, value in self.aligned.items()}
        for option, value in undivided.items():
            if self.settings.get("long") == "split" and value is not None:
                raise UserError("divides lines", where="--long split", hint=f"Leave it out beside {option}.")
        if self.select_depth:
            if self.alternatives is not None:
                self.refuse_beside("--depth", "which chooses for whole translations")
            for side, layers in (("encoder", self.encoder_layers), ("decoder", self.decoder_layers)):
                if layers is not None:
                    hint = "Leave one of the two out."
                    raise UserError("is given beside --depth", where=f"--{side}-layers", hint=hint)
            if self.documents is not None:
                raise UserError(
                    "is given beside --depth, and a selector chooses for single sentences, not for blocks",
                    where="--documents",
                    hint="Leave one of the two out.",
                )
        self._check_aligned()
        check_companion(self.documents, "document ids")
        if self.documents is not None and self.input is not None and self.input.is_file():
            for _ in attach(read_text(self.input), self.input, documents=self.documents):
                pass
