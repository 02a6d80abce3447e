"""Write the sentence pairs of the demo corpus, sparsenmt/data/demo_sentences.txt.gz.

python -m tools.demo_corpus --output sparsenmt/data/demo_sentences.txt.gz
"""

from __future__ import annotations

from pathlib import Path

import click

from tools.demo_corpus.sentence_file import compressed, packed_sentences


@click.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@click.option("--sentences", type=click.IntRange(min=1), default=12_600, show_default=True, help="Number of pairs.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random choices.")
def command(output: Path, sentences: int, seed: int) -> None:
    """Write the sentence pairs of the demo corpus."""
    output.write_bytes(compressed(packed_sentences(sentences, seed)))


if __name__ == "__main__":
    command()
