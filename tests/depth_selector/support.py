"""A tiny random model with 2 x 3 exits, and a selector for it."""

from __future__ import annotations

import torch

from sparsenmt.assemble.model import build_model
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.depth_selector.classifier import DepthClassifier
from sparsenmt.depth_selector.selector import Selector
from sparsenmt.recipe.schema import ModelSection
from sparsenmt.recipe.schema import TokenizerSection as TokenizerOptions
from tests.decoding.support import TinyBundle, invented_lines

DEPTHS = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (2, 3)]
"""The fastest first."""


def deep_bundle(dtype: torch.dtype = torch.float64) -> TinyBundle:
    """Its translations differ from depth to depth."""
    tokenizer = train_tokenizer(TokenizerOptions.model_validate({"kind": "char", "vocabulary_size": 60}), LINES)
    shape = {"dimension": 16, "feed_forward": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 3}
    section = ModelSection.model_validate({**shape, "depth": {"name": "tied_multi"}})
    model = build_model(section, source_size=tokenizer.size, target_size=tokenizer.size, seed=3)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.to(dtype).eval()
    assert model.plan.depths() == DEPTHS
    return TinyBundle(model, Tokenizers(tokenizer, tokenizer, True), FeatureSet({}), 64, torch.device("cpu"))


def random_selector(bundle: TinyBundle) -> Selector:
    """Chooses all depths, about equally often."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        embeddings = torch.randn(bundle.tokenizers.source.size, 16) / 4
        classifier = DepthClassifier(embeddings, depths=len(DEPTHS), layers=2, heads=2)
        with torch.no_grad():
            classifier.output.weight.mul_(3)
    classifier.eval().requires_grad_(False)
    return Selector(classifier, DEPTHS, "digest")


LINES = invented_lines(200, 1)
