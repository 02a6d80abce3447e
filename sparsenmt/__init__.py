"""Neural machine translation with sparse attention: a Transformer with sparsity methods plugged into its sockets.

The names in `__all__` are the public Python API; ``model = sparsenmt.load("runs/demo/model")`` is where most programs
and notebooks begin. Each is imported at first use: `import sparsenmt` alone imports no PyTorch, and no name imports the
command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# __init__.pyi holds the same names for type checkers.
_NAMES = {
    "decoding.alignment": ("Alignment",),
    "analysis.kept_words": ("GatedWord", "KeptWords"),
    "api.attention": ("AttentionMap",),
    "api.decoding_options": ("DecodingOptions",),
    "api.likelihood": ("Likelihood",),
    "api.model": ("Model", "load"),
    "api.states": ("SourceStates",),
    "api.translation": ("ScoredText", "Translation", "Translations"),
    "assemble.bundle": ("Bundle", "open_model"),
    "assemble.checks": ("load_recipe",),
    "command": ("register_command", "register_report"),
    "data.prepared_data": ("PreparedReport",),
    "decoding.translate": ("translate_texts",),
    "errors": ("UserError",),
    "evaluation.metrics": ("Score",),
    "evaluation.scorer": ("ScoringOptions",),
    "evaluation.significance": ("PairedTest",),
    "metric": ("register_metric",),
    "sparsity.registry": ("register",),
    "strategy": ("register_strategy",),
    "recipe.schema": ("Recipe",),
    "report.output_files": ("ReportFiles",),
    "report.tables": ("Report",),
    "workflows.training.average": ("average",),
    "workflows.evaluation.compare": ("CompareRequest", "compare_models"),
    "workflows.evaluation.contrast": ("ContrastRequest", "ContrastResult", "contrast"),
    "workflows.decoding.decode": ("decode",),
    "workflows.decoding.decode_request": ("DecodeRequest",),
    "workflows.training.demo": ("DemoResult", "demo"),
    "workflows.training.distill": ("DistillRequest", "distill"),
    "workflows.evaluation.evaluate": ("Evaluation", "ModelRun", "evaluate"),
    "workflows.conversion.export": ("export_model",),
    "workflows.training.finetune": ("FinetuneRequest", "FinetuneResult", "finetune"),
    "workflows.training.prepare": ("prepare",),
    "workflows.evaluation.report.model_report": ("write_model_report",),
    "workflows.evaluation.report.report_request": ("ReportRequest",),
    "workflows.evaluation.score": (
        "ModelUse",
        "ScoreOptions",
        "ScoreResult",
        "TargetScores",
        "score_files",
        "score_model",
        "score_target",
    ),
    "workflows.conversion.slice": ("SlicedModel", "slice_model"),
    "workflows.conversion.vocabulary_slice": ("VocabularyTexts",),
    "workflows.training.sweep": ("SweepResult", "sweep"),
    "workflows.evaluation.reference_texts": ("TestText",),
    "workflows.training.train": ("StartingPoint", "train"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"sparsenmt.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
