"""The public Python API, for type checkers; at run time `__init__.py` imports each name at first use."""

# ruff: noqa: I001 (`a as a` exports a name; one import for each would be three times as long)

from sparsenmt.decoding.alignment import Alignment as Alignment
from sparsenmt.analysis.kept_words import GatedWord as GatedWord, KeptWords as KeptWords
from sparsenmt.api.attention import AttentionMap as AttentionMap
from sparsenmt.api.decoding_options import DecodingOptions as DecodingOptions
from sparsenmt.api.likelihood import Likelihood as Likelihood
from sparsenmt.api.model import Model as Model, load as load
from sparsenmt.api.states import SourceStates as SourceStates
from sparsenmt.api.translation import ScoredText as ScoredText, Translation as Translation, Translations as Translations
from sparsenmt.assemble.bundle import Bundle as Bundle, open_model as open_model
from sparsenmt.assemble.checks import load_recipe as load_recipe
from sparsenmt.command import register_command as register_command, register_report as register_report
from sparsenmt.data.prepared_data import PreparedReport as PreparedReport
from sparsenmt.decoding.translate import translate_texts as translate_texts
from sparsenmt.errors import UserError as UserError
from sparsenmt.evaluation.metrics import Score as Score
from sparsenmt.evaluation.scorer import ScoringOptions as ScoringOptions
from sparsenmt.evaluation.significance import PairedTest as PairedTest
from sparsenmt.metric import register_metric as register_metric
from sparsenmt.sparsity.registry import register as register
from sparsenmt.strategy import register_strategy as register_strategy
from sparsenmt.recipe.schema import Recipe as Recipe
from sparsenmt.report.output_files import ReportFiles as ReportFiles
from sparsenmt.report.tables import Report as Report
from sparsenmt.workflows.training.average import average as average
from sparsenmt.workflows.evaluation.compare import CompareRequest as CompareRequest, compare_models as compare_models
from sparsenmt.workflows.evaluation.contrast import (
    ContrastRequest as ContrastRequest,
    ContrastResult as ContrastResult,
    contrast as contrast,
)
from sparsenmt.workflows.decoding.decode import decode as decode
from sparsenmt.workflows.decoding.decode_request import DecodeRequest as DecodeRequest
from sparsenmt.workflows.training.demo import DemoResult as DemoResult, demo as demo
from sparsenmt.workflows.training.distill import DistillRequest as DistillRequest, distill as distill
from sparsenmt.workflows.evaluation.evaluate import Evaluation as Evaluation, ModelRun as ModelRun, evaluate as evaluate
from sparsenmt.workflows.conversion.export import export_model as export_model
from sparsenmt.workflows.training.finetune import (
    FinetuneRequest as FinetuneRequest,
    FinetuneResult as FinetuneResult,
    finetune as finetune,
)
from sparsenmt.workflows.training.prepare import prepare as prepare
from sparsenmt.workflows.evaluation.report.model_report import write_model_report as write_model_report
from sparsenmt.workflows.evaluation.report.report_request import ReportRequest as ReportRequest
from sparsenmt.workflows.evaluation.score import (
    ModelUse as ModelUse,
    ScoreOptions as ScoreOptions,
    ScoreResult as ScoreResult,
    TargetScores as TargetScores,
    score_files as score_files,
    score_model as score_model,
    score_target as score_target,
)
from sparsenmt.workflows.conversion.slice import SlicedModel as SlicedModel, slice_model as slice_model
from sparsenmt.workflows.conversion.vocabulary_slice import VocabularyTexts as VocabularyTexts
from sparsenmt.workflows.training.sweep import SweepResult as SweepResult, sweep as sweep
from sparsenmt.workflows.evaluation.reference_texts import TestText as TestText
from sparsenmt.workflows.training.train import StartingPoint as StartingPoint, train as train

__version__: str
