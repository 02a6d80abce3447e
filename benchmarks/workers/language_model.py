"""This project: training steps, or the likelihood of a text, of a language model of bytes.

A worker of ``benchmarks/language_model.py``, whose table of cases says what the keys of the work mean.
"""

from __future__ import annotations

from typing import Any

import torch

import sparsenmt
from protocol import language_batches, serve, work_from_arguments
from sparsenmt.assemble.model import build_model
from sparsenmt.decoding.text_scores import TextReading, score_text
from sparsenmt.engine import build as engines
from sparsenmt.engine.training_operators import use_training_operators
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.devices import pick_device
from sparsenmt.recipe import schema
from sparsenmt.recipe.schema import Optimizer
from sparsenmt.training.gradients import Objective, UpdateTotals
from sparsenmt.training.precision import MasterWeights, pick_dtype
from sparsenmt.training.segments import accumulate_segment_gradients
from sparsenmt.training.state import make_optimizer


def build(work: dict[str, Any]) -> Transformer:
    """The model of the work; the spans of its heads are those that the work gives."""
    own = (
        {}
        if not work["span_maximum"]
        else {
            "position": {"name": "distance_vectors", "maximum": work["span_maximum"]},
            "span": {"name": "adaptive_span", "maximum": work["span_maximum"], "ramp": 32},
        }
    )
    section = schema.ModelSection.model_validate(
        {
            **{key: work[key] for key in ("dimension", "feed_forward", "heads", "decoder_layers", "segment_memory")},
            **{"encoder_layers": 0, "activation": "gelu", "max_positions": work["segment_length"]},
            "positions": "none" if own else "learned",
            "dropout": {"residual": work["dropout"], "attention": work["attention_dropout"]},
            "attention": {"decoder_self": own},
        }
    )
    torch.manual_seed(0)
    model = build_model(section, source_size=work["vocabulary"], target_size=work["vocabulary"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("span.share"):
                parameter.copy_((torch.tensor(work["spans"]) - 32).clamp_min(0) / work["span_maximum"])
    return model


def main() -> None:
    work = work_from_arguments()
    torch.set_num_threads(work["threads"])
    model, batches = build(work), language_batches(work)
    dtype = work["our_dtype"]
    what = f"sparsenmt {sparsenmt.__version__} {dtype}{work.get('named', '')}"
    if work["task"] == "score":
        engine = engines.build(model)
        text = torch.cat([torch.from_numpy(targets).flatten() for _, targets in batches]).numpy()

        def score() -> None:
            reading = TextReading(work["segment_length"], work["segment_memory"], 1, None)
            for _ in score_text(engine, text, reading, torch.device("cpu")):
                pass

        serve(what=what, units=len(text), repeat=score)
        return
    use_training_operators(model, torch.device("cpu"))
    weights = MasterWeights(model.train(), pick_dtype(dtype, pick_device("cpu")))
    optimizer = make_optimizer(weights, Optimizer())
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    parameters, objective = list(weights.named.values()), Objective(0.0, "tokens", {})

    def train() -> None:
        memory: SegmentMemory | None = None
        for inputs, targets in batches:
            totals = UpdateTotals(targets.size, 0, len(targets))
            ids = torch.from_numpy(inputs), torch.from_numpy(targets)
            _, memory = accumulate_segment_gradients(model, *ids, memory, objective, totals)
            weights.collect()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            weights.publish()

    serve(what=what, units=sum(targets.size for _, targets in batches), repeat=train)


if __name__ == "__main__":
    main()
