"""Folders with odd but legal settings: token ids and outputs are those of Transformers, or import says what differs."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.assemble.model import build_model
from sparsenmt.data.tokenizers.frame import FramePair
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.scores import maximum_length
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.importers import huggingface
from sparsenmt.importers.foreign_model import ForeignModel
from sparsenmt.importers.huggingface import Config
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers
from sparsenmt.model.protocol import Source
from sparsenmt.recipe import schema
from tests.importers.odd_folders import FOLDERS, HERE, Odd

GOLDEN: dict[str, Any] = json.loads((HERE / "golden-folders.json").read_text(encoding="utf-8"))["folders"]


class Imported:
    """A folder that was imported."""

    def __init__(self, folder: Path, odd: Odd) -> None:
        self.odd = odd
        self.found: ForeignModel = huggingface.read(folder)
        self.config = Config.read(folder)
        tokens = HuggingFaceTokenizers.read(folder, self.config.values)
        self.source_ids, self.target_ids = tokens.source_ids.tolist(), tokens.target_ids.tolist()
        source, target = odd.languages if self.found.tokenizers.frames.languages else (None, None)
        self.frames: FramePair = self.found.tokenizers.frames.choose(source, target)
        sizes = {"source_size": len(self.source_ids), "target_size": len(self.target_ids)}
        self._model = build_model(
            schema.ModelSection.model_validate(self.found.recipe["model"]), **sizes, seed=0
        ).eval()
        self._model.load_state_dict(self.found.weights)

    def lines(self) -> list[list[int]]:
        """The tokens of the lines."""
        encoded = self.found.tokenizers.source.encode_batch(self.odd.lines)
        return [self.frames.source.around([*ids, EOS]) for ids in encoded]

    @torch.no_grad()
    def output(self, line: list[int]) -> list[int] | None:
        """The tokens of an output in their ids, without what the decoder is given and the end.

        None: the beam has hypotheses that are cut at the longest output.
        """
        found = {key: value for key, value in self.found.recipe["decoding"].items() if not key.endswith("_language")}
        options, tokens = schema.Decoding.model_validate(found), torch.tensor([line])
        engine, given = TorchEngine(self._model), self.frames.target.given
        memory = engine.encode(Source(tokens, torch.ones_like(tokens).bool())).memory
        limits = torch.tensor([maximum_length(len(line), options, 81 - len(given))])
        batch = EncodedBatch(memory, limits, [0], [0], given=given)
        (hypotheses,) = [
            results[0]
            for results in strategy_of(options).search(engine, [batch], lambda chosen: nullcontext())
            if results
        ]
        if len(hypotheses) > 1 and not all(each.ended for each in hypotheses):
            return None
        return [self.target_ids[id_] for id_ in hypotheses[0].tokens]

    def theirs(self, output: list[int]) -> list[int]:
        """Their output without what the decoder is given, the end, and padding."""
        first = [self.target_ids[id_] for id_ in self.frames.target.given]
        assert output[: len(first)] == first
        rest, end = output[len(first) :], self.target_ids[EOS]
        return rest[: rest.index(end)] if end in rest else rest


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_and_outputs_are_equal_or_it_is_said(name: str, tmp_path: Path) -> None:
    odd, golden = FOLDERS[name], GOLDEN.get(FOLDERS[name].like or name)
    odd.write(tmp_path / "model")
    if odd.refused:
        with pytest.raises(UserError) as refused:
            huggingface.read(tmp_path / "model")
        assert odd.said in f"{refused.value.message} {refused.value.where}" and refused.value.hint
        return
    imported = Imported(tmp_path / "model", odd)
    notes = " ".join(imported.found.notes)
    assert odd.said in notes if odd.said else notes == ""
    assert golden is not None
    if "error" in golden:
        assert odd.said
        return
    lines = imported.lines()
    ids = [[imported.source_ids[id_] for id_ in line] for line in lines]
    assert ([line[1:-1] for line in ids] if odd.bare else ids) == golden["ids"]
    if not odd.differs:
        for line, output in zip(lines, golden["outputs"], strict=True):
            assert (found := imported.output(line)) is None or found == imported.theirs(output)


def test_there_are_folders_of_all_kinds() -> None:
    families = Counter(odd.family.partition("-")[0] for odd in FOLDERS.values())
    assert len(FOLDERS) >= 40 and set(families) == {"opus", "bart", "mbart", "m2m", "nllb", "pegasus"}
    assert {bool(odd.said) for odd in FOLDERS.values()} == {True, False}
    assert all(odd.said for odd in FOLDERS.values() if odd.refused or odd.differs)


@pytest.mark.parametrize("family", sorted({odd.family for odd in FOLDERS.values()}))
def test_outputs_tell_lines_apart(family: str) -> None:
    outputs = [tuple(each) for name, odd in FOLDERS.items() if odd.family == family for each in own(name)]
    assert len(set(outputs)) > 2 and len({len(each) for each in outputs}) > 1


def own(name: str) -> list[list[int]]:
    """The outputs of a folder in Transformers."""
    return [] if name not in GOLDEN or "error" in GOLDEN[name] else list(GOLDEN[name]["outputs"])


def test_some_beams_end_by_themselves(tmp_path: Path) -> None:
    ended = 0
    for number, odd in enumerate(odd for name, odd in FOLDERS.items() if "a beam" in name):
        odd.write(tmp_path / str(number))
        imported = Imported(tmp_path / str(number), odd)
        ended += sum(imported.output(line) is not None for line in imported.lines())
    assert ended > 5
