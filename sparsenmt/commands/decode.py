"""``sparsenmt decode``: translate text, line by line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import (
    PATH,
    PIPE,
    TEXT,
    alignment_options,
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
@alignment_options
@click.option(
    "--max-lines",
    type=click.IntRange(0),
    help="Language models: lines of an output, that of the prompt included; 0: as many as the longest output holds. "
    "Other values than 1 are written with \\n for a line end, and \\\\ for a backslash.  [default: the recipe's, or 1]",
)
@click.option(
    "--target-prefix",
    type=TEXT,
    help="File with the beginning of each line's translation; an empty line leaves it free.",
)
@click.option(
    "--glossary",
    type=TEXT,
    help="File of terms, one a line: source term, tab, target term. Where the source term stands in a line, its target "
    "stands in the translation.",
)
@click.option(
    "--glossary-bonus",
    type=click.FloatRange(0, min_open=True),
    help="Let terms compete instead: add this to a hypothesis' log-probability for each token of a term, as 1.",
)
@click.option(
    "--alternatives",
    type=click.IntRange(1),
    metavar="POSITION",
    help="Write, as JSON, the --n-best most probable words at this word of each translation, with what follows them.",
)
@decoding_options
@ensemble_options
@risk_options
def command(model: Path, **options: Any) -> None:
    """Translate text with the model in MODEL_DIR.

    The text is UTF-8, one sentence per line, plain or (from a file) gzipped. Every input line gives one output line, in
    the same order; an empty line gives an empty line. A language model continues every line, also an empty one.

    A line that is longer than every line of the training text is translated sentence by sentence, and a sentence that
    is too long for the model in parts; their outputs make one line, log-probabilities and scores are added, and the
    lines are reported. Of a model of summaries (one language on both sides, or `data.filters.max_source_length` in
    its recipe) the beginning of a line is read, and what is cut reported. --long changes either. Options that are not
    given are those of the recipe that the model was trained with (its `decoding` section).

    With --documents, a model that was trained on blocks of sentences (`data.documents` of its recipe) gets the lines of
    each document in such blocks, and every line still gives one line. If a translation has fewer sentences than its
    block, the missing ones are empty lines; if it has more, the surplus is joined to the last line. Their numbers are
    reported.

    A language model stops at the end of the line, unless --max-lines is given. An output of several lines is still
    written as one: line ends as \\n, and backslashes as \\\\, which `printf %b` turns back. In JSON the text has its
    line ends.

    A target prefix is forced token by token in every search; log-probabilities and scores count it, as those of `score`
    do. Terms of a glossary are found as whole words, the longest first; one in lower case matches any case. With
    --glossary-bonus a term may be missing; the number of terms that stand in their translations is reported.

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
    --alignments hard   " ||| " and links after the output (or the score): 0-0 1-2,
                        places of a source and a target word between spaces, from 0,
                        of the text without tags, before --keep puts in what is missing;
                        in JSON source_words, target_words, alignment
    --alignments soft   JSON: alignment has a row for each target word, of weights of
                        the source's words; dropped, outside: what words that a filter
                        has dropped, and </s>, get
    --alternatives N    a JSON object for an input line: line, source, text, position,
                        prefix (the words before it), alternatives: each with word,
                        probability (of its first token), text, and the keys above
    With --documents, scores are those of blocks, and --json writes an object for
    each: line (its first), lines, document, source, hypotheses; for text, texts.
    """
    from sparsenmt.workflows.decoding.decode import decode
    from sparsenmt.workflows.decoding.decode_request import DecodeRequest

    decode(DecodeRequest.of(model, **options), _write)


def _write(line: str) -> None:
    sys.stdout.buffer.write(line.encode("utf-8") + b"\n")
    sys.stdout.buffer.flush()
