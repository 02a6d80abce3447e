"""The README of an exported model: a description, and code that runs it."""

from __future__ import annotations

from sparsenmt.data.vocabulary import SPECIAL_TOKENS
from sparsenmt.decoding.scores import never
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.export.plain_transformer import PlainTransformer, parameter_count
from sparsenmt.export.to_transformers import architecture, length_penalty, longest_output
from sparsenmt.store import Bundle

_CTRANSLATE2 = """\
import ctranslate2
{imports}

translator = ctranslate2.Translator(".", device="cpu", compute_type="float32")
{tokenizer}
lines = ["..."]
results = translator.translate_batch(
    {encode},
    beam_size={beam},
    length_penalty={penalty},
    max_input_length={positions},
    min_decoding_length={shortest},
    max_decoding_length={longest},
    suppress_sequences={never},
)
for result in results:
    print({decode})
"""

_TRANSFORMERS = """\
{imports}

model = {architecture}.from_pretrained(".")
{tokenizer}
lines = ["..."]
batch = {encode}
for ids in model.generate(**batch):
    print({decode})
"""


def readme(bundle: Bundle, plain: PlainTransformer, target: str, *, sentencepiece: bool) -> str:
    """The text of the README. Its code runs in the model's directory if the target's packages are installed."""
    recipe = bundle.recipe
    facts = [
        f"{recipe.data.source_language} to {recipe.data.target_language}, {len(plain.encoder)} encoder and "
        f"{len(plain.decoder)} decoder layers, {parameter_count(plain):,} weights, exported from a model of sparsenmt "
        f"(`sparsenmt.json` says which). Run in this directory:",
        "",
        "```python",
        (_for_ctranslate2 if target == "ctranslate2" else _for_transformers)(bundle, plain, sentencepiece).rstrip(),
        "```",
        "",
        *(f"- {note}" for note in _notes(bundle, plain, target, sentencepiece)),
    ]
    return "\n".join([f"# {recipe.name}", "", *facts, ""])


def _for_ctranslate2(bundle: Bundle, plain: PlainTransformer, sentencepiece: bool) -> str:
    decoding = bundle.recipe.decoding
    if sentencepiece:
        own = {
            "imports": "import sentencepiece",
            "tokenizer": 'source, target = (sentencepiece.SentencePieceProcessor(f"{side}.spm") for side in '
            '("source", "target"))',
            "encode": "[source.encode(line, out_type=str) for line in lines]",
            "decode": "target.decode(result.hypotheses[0])",
        }
    else:
        own = {
            "imports": "from pathlib import Path\n\nfrom sparsenmt.data.tokenizers.tokenizer import Tokenizers",
            "tokenizer": 'tokenizers = Tokenizers.load(Path("tokenizers"))\n'
            "source, target = tokenizers.source, tokenizers.target\n"
            "ids = {token: id_ for id_, token in enumerate(target.pieces(range(target.size)))}",
            "encode": "[source.pieces(source.encode(line)) for line in lines]",
            "decode": "target.decode([ids[token] for token in result.hypotheses[0]])",
        }
    return _CTRANSLATE2.format(
        **own,
        beam=strategy_of(decoding).width,
        penalty=f"{length_penalty(decoding):g}",
        positions=plain.max_positions,
        shortest=decoding.min_length,
        longest=min(longest_output(plain, decoding), plain.max_positions, 256),
        never=[[SPECIAL_TOKENS[token]] for token in never(decoding)],
    )


def _for_transformers(bundle: Bundle, plain: PlainTransformer, sentencepiece: bool) -> str:
    name = architecture(plain).class_name
    if sentencepiece:
        own = {
            "imports": f"from transformers import {', '.join(sorted(('MarianTokenizer', name)))}",
            "tokenizer": 'tokenizer = MarianTokenizer.from_pretrained(".")',
            "encode": 'tokenizer(lines, return_tensors="pt", padding=True)',
            "decode": "tokenizer.decode(ids, skip_special_tokens=True)",
        }
    else:
        own = {
            "imports": "from pathlib import Path\n\nfrom sparsenmt.data.batching import pad\n"
            "from sparsenmt.data.tokenizers.tokenizer import Tokenizers\nfrom sparsenmt.data.vocabulary import EOS\n"
            f"from transformers import {name}",
            "tokenizer": 'tokenizers = Tokenizers.load(Path("tokenizers"))',
            "encode": 'dict(zip(("input_ids", "attention_mask"), pad([[*tokenizers.source.encode(line), EOS] '
            "for line in lines])))",
            "decode": "tokenizers.target.decode(ids.tolist())",
        }
    return _TRANSFORMERS.format(architecture=name, **own)


def _notes(bundle: Bundle, plain: PlainTransformer, target: str, sentencepiece: bool) -> list[str]:
    recipe = bundle.recipe
    decoding, data = recipe.decoding, recipe.data
    notes = []
    if target == "safetensors-hf" and plain.tie != "all" and not architecture(plain).has_two_vocabularies:
        notes.append("Transformers 5 or later: earlier ones give both sides of such a model one table, silently.")
    if bundle.tokenizers.frames:
        notes.append(
            "The code above puts no tokens of languages around sentences: `tokenizers/frames.json` says which belong."
        )
    if sentencepiece and data.tokenizer.lowercase:
        notes.append("The model was trained on lowercased text: lowercase the lines first.")
    if strategy_of(decoding).penalizes_length and decoding.length_penalty == "gnmt" and decoding.alpha:
        notes.append(
            f"The recipe ranks by log-probability / ((5 + length) / 6)^{decoding.alpha:g}, which is not available "
            "here; the lines above rank by log-probability / length."
        )
    if decoding.unknown == "copy":
        more = "; `replace_unknowns=True` copies a token" if target == "ctranslate2" else ""
        notes.append(f"The recipe replaces unknown tokens by source text, which the lines above do not{more}.")
    if data.filters.max_source_length is not None:
        notes.append(
            f"Training truncated sources to {data.filters.max_source_length:,} tokens: truncate longer ones too."
        )
    if data.documents is not None:
        notes.append(
            f"A line is a block of sentences with the word {data.documents.separator} between them, "
            f"at most {data.documents.max_length:,} tokens."
        )
    return notes or ["Outputs are those of `sparsenmt decode` with the same settings, but for ties."]
