"""Export to the model directories of other programs: weights, vocabularies, README and provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import sparsenmt
from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.export import to_ctranslate2, to_transformers
from sparsenmt.export.plain_transformer import PlainTransformer, plain_model
from sparsenmt.export.readme import readme
from sparsenmt.files import file_entries, new_directory, write_bytes, write_sealed, write_text
from sparsenmt.store import Bundle, check_absent

Target = Literal["ctranslate2", "safetensors-hf"]
TARGETS: tuple[Target, ...] = ("ctranslate2", "safetensors-hf")
MANIFEST = "sparsenmt.json"
_NAMES: dict[Target, str] = {"ctranslate2": to_ctranslate2.NAME, "safetensors-hf": to_transformers.NAME}


def check_target(target: Target, output: Path) -> None:
    """Check the export before the model is read.

    Raises:
        UserError: ``output`` exists, or a package is missing.
    """
    check_absent(output)
    if target == "ctranslate2":
        to_ctranslate2.check_installed()


def export_model(
    bundle: Bundle, output: Path, target: Target, depth: tuple[int, int] | None = None
) -> PlainTransformer:
    """Write a model for another program, atomically; returns what was written.

    Args:
        bundle: opened unpacked.
        depth: numbers of encoder and decoder layers; None: the deepest exits.

    Raises:
        UserError: the target cannot represent the model, or the directory cannot be written.
    """
    plain = plain_model(bundle, _NAMES[target], depth)
    with new_directory(output.resolve()) as partial:
        if target == "ctranslate2":
            to_ctranslate2.write_ctranslate2_model(plain, bundle.tokenizers, partial)
            _write_pieces(bundle, partial)
        else:
            to_transformers.write_transformers_model(plain, bundle.tokenizers, bundle.recipe, partial)
        if not _is_sentencepiece(bundle):
            bundle.tokenizers.save(partial / "tokenizers")
        write_text(partial / "README.md", readme(bundle, plain, target, sentencepiece=_is_sentencepiece(bundle)))
        write_sealed(partial / MANIFEST, {**_origin(bundle, plain, target), "files": file_entries(partial)})
    return plain


def _is_sentencepiece(bundle: Bundle) -> bool:
    sides = bundle.tokenizers.source, bundle.tokenizers.target
    return all(isinstance(side, SentencePieceTokenizer) for side in sides)


def _write_pieces(bundle: Bundle, directory: Path) -> None:
    """Write the SentencePiece models, which CTranslate2 does not store."""
    for name, side in (("source", bundle.tokenizers.source), ("target", bundle.tokenizers.target)):
        if isinstance(side, SentencePieceTokenizer):
            write_bytes(directory / f"{name}.spm", side.model)


def _origin(bundle: Bundle, plain: PlainTransformer, target: Target) -> dict[str, object]:
    return {
        "exported_to": target,
        "model": bundle.recipe.name,
        "weights_sha256": bundle.weights_digest,
        "encoder_layers": len(plain.encoder),
        "decoder_layers": len(plain.decoder),
        "sparsenmt": sparsenmt.__version__,
    }
