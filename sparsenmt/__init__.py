"""Neural machine translation with sparse attention: a Transformer with sparsity methods plugged into its sockets.

The names in `__all__` are the public Python API. Each is imported at first use: `import sparsenmt` alone imports no
PyTorch, and no name imports the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` does the same, lazily
    from sparsenmt.assemble import load_recipe
    from sparsenmt.decoding.translate import translate_texts
    from sparsenmt.errors import UserError
    from sparsenmt.store import Bundle, open_model
    from sparsenmt.workflows.average import average
    from sparsenmt.workflows.compare import CompareRequest, compare_models
    from sparsenmt.workflows.contrast import ContrastRequest, ContrastResult, contrast
    from sparsenmt.workflows.decode import DecodeRequest, decode
    from sparsenmt.workflows.demo import DemoResult, demo
    from sparsenmt.workflows.distill import DistillRequest, distill
    from sparsenmt.workflows.evaluate import Evaluation, evaluate
    from sparsenmt.workflows.export import export_model
    from sparsenmt.workflows.finetune import FinetuneRequest, FinetuneResult, finetune
    from sparsenmt.workflows.prepare import prepare
    from sparsenmt.workflows.score import (
        ModelUse,
        ScoreOptions,
        ScoreResult,
        TargetScores,
        score_files,
        score_model,
        score_target,
    )
    from sparsenmt.workflows.slice import SlicedModel, slice_model
    from sparsenmt.workflows.sweep import SweepResult, sweep
    from sparsenmt.workflows.test_sets import TestText
    from sparsenmt.workflows.train import StartingPoint, train

__all__ = [
    "Bundle",
    "CompareRequest",
    "ContrastRequest",
    "ContrastResult",
    "DecodeRequest",
    "DemoResult",
    "DistillRequest",
    "Evaluation",
    "FinetuneRequest",
    "FinetuneResult",
    "ModelUse",
    "ScoreOptions",
    "ScoreResult",
    "SlicedModel",
    "StartingPoint",
    "SweepResult",
    "TargetScores",
    "TestText",
    "UserError",
    "__version__",
    "average",
    "compare_models",
    "contrast",
    "decode",
    "demo",
    "distill",
    "evaluate",
    "export_model",
    "finetune",
    "load_recipe",
    "open_model",
    "prepare",
    "score_files",
    "score_model",
    "score_target",
    "slice_model",
    "sweep",
    "train",
    "translate_texts",
]

_MODULES = {
    "load_recipe": "assemble",
    "translate_texts": "decoding.translate",
    "UserError": "errors",
    "Bundle": "store",
    "open_model": "store",
    "average": "workflows.average",
    "CompareRequest": "workflows.compare",
    "compare_models": "workflows.compare",
    "ContrastRequest": "workflows.contrast",
    "ContrastResult": "workflows.contrast",
    "contrast": "workflows.contrast",
    "DecodeRequest": "workflows.decode",
    "decode": "workflows.decode",
    "DemoResult": "workflows.demo",
    "demo": "workflows.demo",
    "DistillRequest": "workflows.distill",
    "distill": "workflows.distill",
    "Evaluation": "workflows.evaluate",
    "evaluate": "workflows.evaluate",
    "export_model": "workflows.export",
    "FinetuneRequest": "workflows.finetune",
    "FinetuneResult": "workflows.finetune",
    "finetune": "workflows.finetune",
    "prepare": "workflows.prepare",
    "ModelUse": "workflows.score",
    "ScoreOptions": "workflows.score",
    "ScoreResult": "workflows.score",
    "TargetScores": "workflows.score",
    "score_files": "workflows.score",
    "score_model": "workflows.score",
    "score_target": "workflows.score",
    "SlicedModel": "workflows.slice",
    "slice_model": "workflows.slice",
    "SweepResult": "workflows.sweep",
    "sweep": "workflows.sweep",
    "TestText": "workflows.test_sets",
    "StartingPoint": "workflows.train",
    "train": "workflows.train",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
