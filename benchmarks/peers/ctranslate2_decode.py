"""CTranslate2: beam search with a pre-norm Transformer of random weights, every output of the same length.

A worker of ``benchmarks/decode_vs_ctranslate2.py``, whose table of cases says what the keys of the work mean.
"""

from __future__ import annotations

import tempfile
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

from peers.ctranslate2_settings import settings
from protocol import decoding_sources, serve, work_from_arguments

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")


class RandomWeights:
    """Fills the parts of a specification; scales keep activations and scores in a usual range."""

    def __init__(self, dimension: int, seed: int = 0) -> None:
        self.dimension = dimension
        self._random = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, scale: float | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        values = self._random.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(columns**-0.5 if scale is None else scale)

    def linear(self, spec: Any, outputs: int, inputs: int) -> None:
        spec.weight = self.matrix(outputs, inputs)
        spec.bias = np.zeros(outputs, dtype=np.float32)

    def norm(self, spec: Any) -> None:
        spec.gamma = np.ones(self.dimension, dtype=np.float32)
        spec.beta = np.zeros(self.dimension, dtype=np.float32)

    def attention(self, spec: Any, *, cross: bool) -> None:
        """Query, key and value are one product at self-attention, query apart from key and value at cross-attention."""
        d = self.dimension
        outputs = (d, 2 * d, d) if cross else (3 * d, d)
        for linear, size in zip(spec.linear, outputs, strict=True):
            self.linear(linear, size, d)
        self.norm(spec.layer_norm)

    def feed_forward(self, spec: Any, inner: int) -> None:
        self.linear(spec.linear_0, inner, self.dimension)
        self.linear(spec.linear_1, self.dimension, inner)
        self.norm(spec.layer_norm)


def specification(work: dict[str, Any]) -> Any:
    """The model as CTranslate2's converters would describe it, one table for source, target and output."""
    spec = transformer_spec.TransformerSpec.from_config(
        (work["encoder_layers"], work["decoder_layers"]),
        work["heads"],
        pre_norm=True,
        activation=common_spec.Activation.RELU,
    )
    weights = RandomWeights(work["dimension"])
    table = weights.matrix(work["vocabulary"], work["dimension"])
    positions = weights.matrix(work["max_positions"], work["dimension"], scale=0.1)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = table
    spec.decoder.projection.bias = np.zeros(work["vocabulary"], dtype=np.float32)
    for stack in (spec.encoder, spec.decoder):
        stack.scale_embeddings = True
        stack.position_encodings.encodings = positions
        weights.norm(stack.layer_norm)
        for layer in stack.layer:
            weights.attention(layer.self_attention, cross=False)
            weights.feed_forward(layer.ffn, work["feed_forward"])
    for layer in spec.decoder.layer:
        weights.attention(layer.attention, cross=True)
    vocabulary = [*SPECIAL, *(str(i) for i in range(len(SPECIAL), work["vocabulary"]))]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    return spec


def main() -> None:
    work = work_from_arguments()
    workers = min(work["side_by_side"], work["threads"])
    kind, _, index = work.get("device", "cpu").partition(":")
    with tempfile.TemporaryDirectory() as folder:
        specification(work).save(folder)
        translator = ctranslate2.Translator(
            folder,
            device=kind,
            device_index=int(index or 0),
            compute_type=work["peer_compute_type"],
            inter_threads=workers,
            intra_threads=work["threads"] // workers,
        )
    # Every worker gets a batch.
    rows = min(work["batch_sentences"], -(-work["sentences"] // workers))
    sources = [[str(piece) for piece in source] for source in decoding_sources(work)]
    length = work["target_length"]

    def repeat() -> None:
        results = translator.translate_batch(
            sources,
            max_batch_size=rows,
            beam_size=work["beam_size"],
            length_penalty=work["length_penalty"],
            min_decoding_length=length,
            max_decoding_length=length,
            max_input_length=0,
        )
        assert all(len(result.hypotheses[0]) == length for result in results)

    serve(
        what=f"CTranslate2 {ctranslate2.__version__} {work['peer_compute_type']}, {settings(workers)}",
        units=len(sources) * length,
        repeat=repeat,
    )


if __name__ == "__main__":
    main()
