"""The tables of commands and of the reports of ``sparsenmt analyze``. Imports nothing heavy: help lists these names.

A command or report of the package is one file in `sparsenmt.commands`, and one line here; a plugin registers its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from sparsenmt.plugins.table import EntryTable, calling_module

C = TypeVar("C", bound=Callable[..., Any])


class CommandEntry(NamedTuple):
    """A row of a table.

    Args:
        module: the module below `sparsenmt.commands` that holds ``command``; of a plugin, its module.
        help: short, for lists.
        target: of a plugin, the command, or the function that measures a report.
        reads: of such a report, the arguments of ``sparsenmt.commands.analyze.options``.
    """

    module: str
    help: str
    target: Any = None
    reads: Mapping[str, bool] = {}


COMMANDS: EntryTable[CommandEntry] = EntryTable(
    "command",
    {
        "prepare": CommandEntry("prepare", "Train a recipe's tokenizer and write its text as binary data."),
        "train": CommandEntry("train", "Train a recipe's model on prepared data."),
        "finetune-l0": CommandEntry("finetune_l0", "Add gates to a trained model and train on."),
        "decode": CommandEntry("decode", "Translate text with a trained model."),
        "score": CommandEntry("score", "Score translations, a model on a test set, or a language model on a text."),
        "contrast": CommandEntry("contrast", "Evaluate a model on a contrastive test suite."),
        "select-depth": CommandEntry("select_depth", "Train a classifier that chooses a depth for each sentence."),
        "analyze": CommandEntry("analyze.group", "Report on gates, attention and layers of a model."),
        "analyze-pos": CommandEntry("analyze.pos", "Alias of `sparsenmt analyze pos`."),
        "compare": CommandEntry("compare", "Compare trained models: quality, size, attention, speed."),
        "report": CommandEntry("report", "Write one page on trained models: scores, sparsity, attention, sentences."),
        "sweep": CommandEntry("sweep", "Train and evaluate the variants of a recipe."),
        "distill": CommandEntry("distill", "Train a student on a teacher's translations."),
        "depth-table": CommandEntry("depth_table", "Measure quality and time at every depth."),
        "plan": CommandEntry("plan", "Find the cheapest model that is good enough, and write it."),
        "slice": CommandEntry("slice", "Cut a model to fewer layers or tokens."),
        "shortlist": CommandEntry("shortlist", "Make a vocabulary shortlist for faster decoding."),
        "average": CommandEntry("average", "Average checkpoints into one model."),
        "import": CommandEntry("import_model", "Make a model directory of a Hugging Face or Marian model."),
        "export": CommandEntry("export", "Write a model for CTranslate2, Marian or Transformers."),
        "benchmark": CommandEntry("benchmark", "Measure decoding and training speed."),
        "check-method": CommandEntry("check_method", "Check that sparsity methods keep the rules of the engine."),
        "recipe-schema": CommandEntry("recipe_schema", "Write the JSON Schema of recipes, for editors."),
        "completion": CommandEntry("completion", "Print the script by which a shell completes commands."),
        "plugins": CommandEntry("plugins", "List plugins, and what they have registered."),
        "verify": CommandEntry("verify", "Check a trained model, and write its certificate."),
        "doctor": CommandEntry("doctor", "Examine the compiled kernels of this machine."),
        "demo": CommandEntry("demo", "Prepare, train, decode and score on the built-in demo corpus."),
    },
    __name__,
    "the command '{}'".format,
)
"""The commands, in the order of the help."""

REPORTS: EntryTable[CommandEntry] = EntryTable(
    "report",
    {
        "pos": CommandEntry("analyze.pos", "Sparsity rate by part of speech."),
        "position": CommandEntry("analyze.position", "Sparsity rate by position in the word."),
        "attention-mass": CommandEntry("analyze.attention_mass", "Summed cross-attention of source words."),
        "entropy": CommandEntry("analyze.entropy", "Entropy of self-attention, of kept and dropped positions."),
        "maps": CommandEntry("analyze.maps", "Attention maps of sentences."),
        "alphas": CommandEntry("analyze.alphas", "Learned alphas of entmax, and their course over training."),
        "spans": CommandEntry("analyze.spans", "Learned spans, and the quality that they were reached at."),
        "density": CommandEntry("analyze.density", "Share of visible positions that heads give weight to."),
        "diversity": CommandEntry("analyze.diversity", "Jensen-Shannon divergence between heads."),
        "roles": CommandEntry("analyze.roles", "Positional, BPE-merging and interrogation heads."),
        "dense-sentences": CommandEntry(
            "analyze.dense_sentences", "Sentences on which sparse heads are unusually dense."
        ),
        "last-token": CommandEntry("analyze.last_token", "Cross-attention mass on the last source token."),
        "ablate-heads": CommandEntry("analyze.ablate_heads", "Quality with each head disabled in turn."),
        "by-length": CommandEntry("analyze.by_length", "Quality by the length of sentences."),
        "layers": CommandEntry("analyze.layers", "Rates of every filter, by encoder layer."),
        "annotate": CommandEntry("analyze.annotate", "Sentences with kept and dropped words marked."),
    },
    __name__,
    "the report '{}'".format,
)
"""The reports of ``sparsenmt analyze``, in the order of the help."""


def register_command(name: str, help: str) -> Callable[[C], C]:
    """Decorate a click command to register it as ``sparsenmt NAME``; it gets ``--quiet`` and ``--log-file``, too.

    Args:
        help: noun phrase or imperative for the list of all commands.

    Raises:
        ValueError: another module has registered the name, or it is that of a command of the package.
    """
    origin = calling_module()

    def add(command: C) -> C:
        made = getattr(command, "callback", None) or command
        COMMANDS.register(name, CommandEntry(origin.module, help, command), made, origin)
        return command

    return add


def register_report(
    name: str,
    help: str,
    *,
    text: bool = True,
    words: bool = False,
    sentences: bool = False,
    language_models: bool = False,
    translates: bool = False,
    target: bool = False,
    files: bool = False,
) -> Callable[[C], C]:
    """Decorate a function to register it as ``sparsenmt analyze NAME``, which draws, and writes JSON and CSV.

    The function takes a ``sparsenmt.analysis.session.AnalysisSession`` and settings of its own, and returns what
    its ``result`` makes. A setting is a parameter with a default and a type, of which an option is made:
    ``least: int = 1`` is ``--least``; ``Annotated[int, "Shortest sentence."]`` gives it a help text.

    Args:
        help: noun phrase for the list of all reports.
        text, words, sentences, language_models, translates, target, files: the options that the command line shares
            with other reports, as in ``sparsenmt.commands.analyze.options``.

    Raises:
        ValueError: another module has registered the name, or it is that of a report of the package.
    """
    origin = calling_module()
    reads = {
        **{"text": text, "words": words, "sentences": sentences, "language_models": language_models},
        **{"translates": translates, "target": target, "files": files},
    }

    def add(measure: C) -> C:
        REPORTS.register(name, CommandEntry(origin.module, help, measure, reads), measure, origin)
        return measure

    return add
