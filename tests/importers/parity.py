"""An imported model against what Transformers computes with the original.

``golden/`` holds small models with random weights, their inputs and outputs, made by
``benchmarks/peers/transformers_models.py make``; ``benchmarks/import_parity.py`` makes them anew.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from sparsenmt.assemble.model import build_model
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.importers.foreign_model import ForeignModel
from sparsenmt.importers.huggingface import Config, convert, read_weights, weight_files
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers
from sparsenmt.model.protocol import NEVER, Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe import schema
from sparsenmt.storage.tensors import load_foreign_tensors

GOLDEN = Path(__file__).with_name("golden")
VARIANTS = sorted(path.name for path in GOLDEN.iterdir()) if GOLDEN.exists() else []
SINGLE, DOUBLE = 1e-4, 1e-9


@dataclass(frozen=True)
class Words:
    """A tokenizer of which only the number of tokens is known."""

    size: int


def their_ids(config: Config, unknown: int, rows: int) -> Tensor:
    """Their id of each of this program's: the special tokens, BOS being the one that their decoder begins with."""
    pad, start, end = (int(config.values[f"{name}_token_id"]) for name in ("pad", "decoder_start", "eos"))
    return torch.tensor([pad, unknown, start, end, *(i for i in range(rows) if i not in (pad, unknown, end))])


@dataclass(frozen=True)
class Imported:
    """A model that was converted, and the ids of both sides."""

    folder: Path
    found: ForeignModel
    source_ids: Tensor
    target_ids: Tensor

    @staticmethod
    def of(folder: Path) -> Imported:
        """Import the weights of a folder, without a tokenizer."""
        config = Config.read(folder)
        unknown, rows = json.loads((folder / "unknown.json").read_text()), config.number("vocab_size")
        target_rows = int(config.values.get("decoder_vocab_size") or rows)
        source, target = (their_ids(config, unknown, count) for count in (rows, target_rows))
        words = (Words(len(source)), Words(len(target)))
        both = cast("Any", words[0] if rows == target_rows else words[1])
        tokenizers = Tokenizers(cast("Any", words[0]), both, rows == target_rows)
        tokens = HuggingFaceTokenizers(tokenizers, source, target)
        return Imported(folder, convert(config, read_weights(weight_files(folder)), tokens), source, target)

    def model(self, dtype: torch.dtype = torch.float32) -> Transformer:
        """The model with the weights of the import."""
        section = schema.ModelSection.model_validate(self.found.recipe["model"])
        built = build_model(section, source_size=len(self.source_ids), target_size=len(self.target_ids), seed=0)
        built.load_state_dict(self.found.weights)
        return built.to(dtype).eval()

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The golden inputs or outputs."""
        return load_foreign_tensors(self.folder / f"{name}.safetensors", hint="Make it anew.")

    def source(self) -> Source:
        """The sentences, in the ids of this program."""
        given = self.tensors("inputs")
        return Source(our_ids(given["source"], self.source_ids, PAD), given["valid"])

    @torch.no_grad()
    def logits(self, dtype: torch.dtype) -> Tensor:
        """(B, T, W) of the target that is given."""
        model, target = self.model(dtype), our_ids(self.tensors("inputs")["target"], self.target_ids, BOS)
        target[:, 0] = BOS
        memory = model.encode(self.source()).memories[model.plan.deepest[0]]
        return model.project(model.decode(target, memory)[model.plan.deepest[1]])

    def difference(self, dtype: torch.dtype) -> float:
        """The largest difference of a logit, and of a log-probability, from theirs.

        Without a share: the BOS that repeats another token, and Marian's padding.
        """
        theirs = self.tensors("outputs")["logits64" if dtype == torch.float64 else "logits"].clone()
        ours = self.logits(dtype)
        repeated = int((self.target_ids == self.target_ids[BOS]).sum()) > 1
        never = [*([BOS] if repeated else []), *([PAD] if self.marian else [])]
        real = torch.ones(len(self.target_ids), dtype=torch.bool)
        real[never] = False
        assert (self.found.weights.get("output_bias", torch.zeros(len(real))) > NEVER / 2).equal(real)
        assert not ours.log_softmax(-1).exp()[..., never].any()
        if self.marian:
            theirs[..., self.target_ids[PAD]] = -math.inf
        pairs = (ours, theirs), (ours.log_softmax(-1), theirs.log_softmax(-1))
        return max(float((own - their[..., self.target_ids])[..., real].abs().max()) for own, their in pairs)

    @property
    def marian(self) -> bool:
        """True if padding is no token of the original program."""
        return self.folder.name.startswith("marian")

    def prefixes(self) -> Tensor:
        """(B, P) the tokens that constrained outputs begin with, in the ids of this program, negative after them."""
        target = our_ids(self.tensors("inputs")["target"], self.target_ids, BOS)[:, 1:]
        sizes = self.tensors("constrained")["prefixes"]
        return target.masked_fill(torch.arange(target.shape[1]) >= sizes[:, None], -1)

    @torch.no_grad()
    def outputs(self, beam: int, required: Tensor | None = None, **values: Any) -> dict[int, list[int]]:
        """The best outputs in their ids, with the first token and the end, by the number of the sentence.

        With a beam, only of searches that ended by themselves: what counts at the longest output is each program's own.

        Args:
            required: (B, P) tokens that outputs begin with; None: any.
            values: of decoding options.
        """
        model, source = self.model(), self.source()
        options = schema.Decoding.model_validate({**self.found.recipe["decoding"], "beam_size": beam, **values})
        memory = model.encode(source).memories[model.plan.deepest[0]]
        count, limit = len(source.tokens), int(options.max_length_offset)
        numbers = list(range(count))
        batch = EncodedBatch(memory, torch.full((count,), limit), numbers, numbers, required=required)
        best: dict[int, list[int]] = {}
        for results in strategy_of(options).search(TorchEngine(model), [batch], lambda chosen: nullcontext()):
            for number, hypotheses in results.items():
                tokens = [BOS, *hypotheses[0].tokens, *([EOS] if hypotheses[0].ended else [])]
                if beam == 1 or all(each.ended and len(each.tokens) < limit - 1 for each in hypotheses):
                    best[number] = self.target_ids[tokens].tolist()
        return best

    def their_outputs(self, beam: int, file: str = "outputs", search: str = "") -> list[list[int]]:
        """The outputs of Transformers, without padding; ``search``: its name in a file, if the beam does not say it."""
        rows = self.tensors(file)[search or ("greedy" if beam == 1 else "beam")].tolist()
        end = int(self.target_ids[EOS])
        found = []
        for row in rows:
            last = row.index(end, 1) + 1 if end in row[1:] else len(row)
            found.append(row[:last])
        return found


def our_ids(theirs: Tensor, ids: Tensor, default: int) -> Tensor:
    """Tokens in the ids of this program; the last of equal ones, which is not BOS."""
    table = torch.full((int(ids.max()) + 1,), default)
    for ours, their in enumerate(ids.tolist()):
        if ours != BOS:
            table[their] = ours
    assert len(table) > UNK
    return table[theirs]
