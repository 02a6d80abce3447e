"""BERTScore and COMET through their own packages, with models that lie on this machine.

Nothing is downloaded: environment variables name the models, and the packages are told that there is no network.
COMET runs as a program of its own, ``comet-score``, since its checkpoints are pickles, which this process never loads.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from sparsenmt.data.text import write_lines
from sparsenmt.errors import UserError
from sparsenmt.evaluation.scorer import ScoringSettings, SentenceMeans
from sparsenmt.metric import METRICS
from sparsenmt.storage.files import sha256_text

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def _local_model(name: str, what: str) -> str:
    """Return the value of a metric's environment variable; UserError if it is not set, or names nothing."""
    variable = METRICS[name].model_variable
    value = os.environ.get(variable, "")
    if not value:
        raise UserError(
            f"{METRICS[name].label} needs {what} on this machine",
            where=variable,
            hint=f"Set {variable} to its path; nothing is downloaded.",
        )
    return value


def _version(package: str, extra: str) -> str:
    """Return the version of an optional package; UserError if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        hint = f"Install it: pip install 'sparsenmt[{extra}]'."
        raise UserError(f"the package {package} is not installed", where=f"--metric {extra}", hint=hint) from None


class BertScore(SentenceMeans):
    """BERTScore's F1 without baseline or IDF weights (Zhang et al. 2020).

    ``SPARSENMT_BERTSCORE`` is the directory of a model of Transformers, followed by ``:LAYER`` unless the package knows
    the best layer for its name.
    """

    def __init__(self, name: str, settings: ScoringSettings) -> None:
        text = _local_model(name, "a model of Transformers")
        version = _version("bert-score", "bertscore")
        path, _, layer = text.rpartition(":") if text.rpartition(":")[2].isdigit() else (text, "", "")
        if not Path(path).is_dir():
            raise UserError(f"{path} is no directory", where=METRICS[name].model_variable, hint="Name a model's.")
        os.environ.update(_OFFLINE)
        package = importlib.import_module("bert_score")
        known: Mapping[str, int] = package.utils.model2layers
        chosen = int(layer) if layer else known.get(Path(path).name)
        if chosen is None:
            raise UserError(
                f"the layer of {Path(path).name} is not known",
                where=METRICS[name].model_variable,
                hint=f"Add it: {path}:LAYER, from 1.",
            )
        self._scorer = _bert_scorer(path, chosen)
        self.signature = f"model:{Path(path).name}|layer:{chosen}|idf:no|baseline:no|version:bert-score-{version}"

    def sentence_scores(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        columns = [list(each) for each in zip(*references, strict=True)]
        found: NDArray[np.float64] = self._scorer.score(list(hypotheses), columns)[2].double().cpu().numpy()
        return found


@functools.lru_cache(maxsize=1)
def _bert_scorer(path: str, layer: int) -> Any:
    """Load a model for BERTScore, once for all that a command compares."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return importlib.import_module("bert_score").BERTScorer(model_type=path, num_layers=layer, device=device)


class Comet(SentenceMeans):
    """COMET (Rei et al. 2020, 2022), which reads the source, too; ``SPARSENMT_COMET`` is a checkpoint, ``.ckpt``."""

    _known: ClassVar[dict[str, NDArray[np.float64]]] = {}  # hash of model and texts -> scores: tests repeat them

    def __init__(self, name: str, settings: ScoringSettings) -> None:
        self._path = Path(_local_model(name, "a checkpoint of COMET"))
        version = _version("unbabel-comet", "comet")
        if self._path.suffix != ".ckpt" or not self._path.is_file():
            hint = "Name the .ckpt file in the folder of a downloaded model."
            raise UserError(f"{self._path} is no checkpoint", where=METRICS[name].model_variable, hint=hint)
        self._sources = settings.sources
        self.signature = f"model:{self._path.parent.parent.name}|version:unbabel-comet-{version}"

    def sentence_scores(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        if len(references) != 1 or self._sources is None:
            what = "needs the source" if self._sources is None else "compares with one reference"
            raise UserError(f"COMET {what}", where="--metric comet", hint="Name --source, and one --reference.")
        texts = (*self._sources,), (*hypotheses,), (*references[0],)
        key = sha256_text(json.dumps([str(self._path), *texts]))
        if key not in self._known:
            self._known[key] = self._run(*texts)
        return self._known[key]

    def _run(self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
        """Score sentences by the program, which loads the model."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            texts = {"-s": sources, "-t": hypotheses, "-r": references}
            command = [sys.executable, "-m", "comet.cli.score", "--model", str(self._path), "--quiet", "--only_system"]
            for option, lines in texts.items():
                write_lines(folder / option[1:], [line.replace("\r", " ") for line in lines])
                command += [option, str(folder / option[1:])]
            gpus = "1" if torch.cuda.is_available() else "0"
            command += ["--gpus", gpus, "--to_json", str(folder / "scores")]
            done = subprocess.run(command, env=os.environ | _OFFLINE, capture_output=True, check=False)
            if done.returncode:
                last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
                hint = "Its encoder and tokenizer must lie on this machine, too (HF_HOME)."
                raise UserError(f"comet-score fails: {last}", where=str(self._path), hint=hint)
            (segments,) = json.loads((folder / "scores").read_bytes()).values()
        return np.array([each["COMET"] for each in segments], dtype=np.float64)
