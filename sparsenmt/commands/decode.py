"""``sparsenmt decode``: translate text, line by line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import (
    PATH,
    PIPE,
    decoding_options,
    documents_option,
    ensemble_options,
    risk_options,
    tags_option,
)


@click.command("decode")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.option("--input", "-i", type=PIPE, help="Text to translate.  [default: stdin]")
@click.option("--output", "-o", type=PIPE, help="File to write.  [default: stdout]")
@tags_option
@documents_option
@click.option("--n-best", type=click.IntRange(1), default=1, help="Number of hypotheses to write for each line.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object per line: texts, scores, log-probabilities.")
@click.option(
    "--max-lines",
    type=click.IntRange(0),
    help="Language models: lines of an output, that of the prompt included; 0: as many as the longest output holds. "
    "Other values than 1 are written with \\n for a line end, and \\\\ for a backslash.  [default: the recipe's, or 1]",
)
@decoding_options
@ensemble_options
@risk_options
def command(model: Path, **options: Any) -> None:
    """Translate text with the model in MODEL_DIR.

    The text is UTF-8, one sentence per line, plain or (from a file) gzipped. Every input line gives one output line, in
    the same order; an empty line gives an empty line. A language model continues every line, also an empty one. A line
    that is too long for the model is cut, with a warning. If the recipe cuts sources, the number of cut lines is
    reported at the end. Options that are not given are those of the recipe that the model was trained with (its
    `decoding` section).

    With --documents, a model that was trained on blocks of sentences (`data.documents` of its recipe) gets the lines of
    each document in such blocks, and every line still gives one line. If a translation has fewer sentences than its
    block, the missing ones are empty lines; if it has more, the surplus is joined to the last line. Their numbers are
    reported.

    A language model stops at the end of the line, unless --max-lines is given. An output of several lines is still
    written as one: line ends as \\n, and backslashes as \\\\, which `printf %b` turns back. In JSON the text has its
    line ends.

    With --depth auto every line is translated with the numbers of layers that the model's depth selector chooses, which
    `sparsenmt select-depth` has trained; the number of lines at each depth is reported at the end.

    With --ensemble and --ensemble-depth the next tokens are chosen by the average of several models, or of several
    depths of one.

    An output file gets its name when it is complete. If a command that reads a file and writes a file is interrupted,
    killed, or runs out of disk space, the same command resumes after the windows that were finished and gives the same
    bytes as an undisturbed run. It starts again, and says why, if the text, the model, an option or the program's
    version are other ones. With another number of threads, device, processor or PyTorch, or other compiled kernels,
    last digits would differ: it is refused, unless --mix-numerics is given.

    \b
    --n-best N          up to N lines for an input line: number ||| text ||| score
                        (numbers from 0, best first); with --mbr the expected utility
    --json              a JSON object for an input line: line (from 1), source, and
                        hypotheses, best first, each with text, score,
                        log_probability (natural), pieces (number of tokens), ended
                        (false: cut at the maximum length)
    With --documents, scores are those of blocks, and --json writes an object for
    each: line (its first), lines, document, source, hypotheses; for text, texts.
    """
    from sparsenmt.workflows.decoding.decode import DecodeRequest, decode

    decode(DecodeRequest.of(model, **options), _write)


def _write(line: str) -> None:
    sys.stdout.buffer.write(line.encode("utf-8") + b"\n")
    sys.stdout.buffer.flush()
