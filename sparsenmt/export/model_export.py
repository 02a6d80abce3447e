"""Export to the model directories of other programs: weights, vocabularies, README and provenance."""

from __future__ import annotations

from pathlib import Path

import sparsenmt
from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.export.plain_transformer import PlainTransformer, plain_model
from sparsenmt.export.readme import readme
from sparsenmt.export.target import NO_CHOICES, FileChoices, load_target
from sparsenmt.storage.files import check_absent, new_directory, write_bytes, write_sealed, write_text
from sparsenmt.storage.records import file_entries

MANIFEST = "sparsenmt.json"


def check_target(target: str, output: Path, choices: FileChoices = NO_CHOICES) -> None:
    """Check the export before the model is read.

    Raises:
        UserError: ``output`` exists, a package is missing, or the target has no such choices.
    """
    check_absent(output)
    load_target(target, choices).check()


def export_model(
    bundle: Bundle,
    output: Path,
    target: str,
    depth: tuple[int, int] | None = None,
    *,
    source: Path | None = None,
    choices: FileChoices = NO_CHOICES,
) -> PlainTransformer:
    """Write a model for another program, atomically; returns what was written.

    Args:
        bundle: opened unpacked.
        target: a name in `TARGETS`.
        depth: numbers of encoder and decoder layers; None: the deepest exits.
        source: the directory of the model, if it has one.
        choices: of the target's files.

    Raises:
        UserError: the target cannot represent the model, or the directory cannot be written.
    """
    program = load_target(target, choices)
    plain = plain_model(bundle, program.name, depth, computes=program.computes)
    tokenizers = bundle.tokenizers
    with new_directory(output.resolve(), source) as partial:
        sentencepiece = program.own_vocabularies or _write_sentencepiece(tokenizers, partial)
        program.write(plain, bundle, partial, sentencepiece)
        if not sentencepiece:
            tokenizers.save(partial / "tokenizers")
        write_text(partial / "README.md", readme(bundle, plain, program, sentencepiece=sentencepiece, source=source))
        origin = {
            "exported_to": target,
            "model": bundle.recipe.name,
            "weights_sha256": bundle.weights_digest,
            "encoder_layers": plain.encoder_layers,
            "decoder_layers": plain.decoder_layers,
            "sparsenmt": sparsenmt.__version__,
        }
        write_sealed(partial / MANIFEST, {**origin, "files": file_entries(partial)})
    return plain


def _write_sentencepiece(tokenizers: Tokenizers, directory: Path) -> bool:
    """Write the SentencePiece models; False for other tokenizers, and with tokens around sentences or added ones."""
    source, target, kinds = tokenizers.source, tokenizers.target, (SentencePieceTokenizer, PieceTokenizer)
    added = any(isinstance(each, PieceTokenizer) and each.added.tokens for each in (source, target))
    if tokenizers.frames or added or not (isinstance(source, kinds) and isinstance(target, kinds)):
        return False
    write_bytes(directory / "source.spm", source.model)
    write_bytes(directory / "target.spm", target.model)
    return True
