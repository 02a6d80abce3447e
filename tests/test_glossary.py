"""The words of docs/reference/glossary.md: docstrings, comments, messages and pages do not use the banned ones."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

# What is banned -> what is written instead. Inline code is not looked at.
BANNED = {
    r"\bpieces?\b": "token, subword token",
    r"\bgiven heads?\b": "fixed heads",
    r"\bancestral search\b": "greedy search",
    r"(?<!-)\bblind (rows?|quer(y|ies))\b|\b(rows?|quer(y|ies)) (is|are) blind\b": "fully masked row",
    r"\bupright\b": "transposed keys",
    r"\bstraight order\b": "identity order",
    r"\brooms?\b": "buffer",
    r"\btak(es?|ing) no place\b": "lazily committed memory",
    r"\bas (it|they) lies?\b": "cross-attention keys and values",
    r"\blength divisors?\b": "length penalty",
    r"\blast caches?\b|(?-i:\bNEAR\b)": "last-level cache size",
    r"\bas the optimizer sees\b": "master weights",
    r"\b(process|rank) (that|which) leads\b|\bwho leads\b": "main process",
    r"\b(search(es)?|caches|batches)\b[^.,;]{0,20}\bjoin|\bjoin(s|ed)? (the )?(search|batch|cache)": "merge",
    r"\bgo(es|ne|ing)? on (after|behind|from|where|with)\b": "resume",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\blook(s|ed)? after\b": "check the disk",
    r"\b(giv(e|es|en|ing)|gave) up\b": "release",
    r"\bcut(s|ting)? back\b": "truncate",
}
# Riddles and persons: there is no one word for them.
BANNED_PHRASES = (
    r"\bfound out\b",
    r"\bso many\b(?! as\b)",
    r"\b(nobody|somebody)\b",
    r"\bwho(ever)? (asks|reads|calls|listens)\b",
)
# (file, pattern): places where a word means something else, or repeats what stands in files or output.
ALLOWED = {
    ("sparsenmt/commands/decode.py", r"log_probability (\(natural\), )?pieces"): "a key of the JSON output",
    ("sparsenmt/export/to_ctranslate2.py", r"\.pieces\("): "a method of tokenizers",
    ("sparsenmt/analysis/annotate.py", r"^text piece$"): "a column of the JSON and CSV output",
}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of all docstrings, comments, and strings of several words; of all lines of a page."""
    data = path.read_bytes()
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(data.decode().split("\n"), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced:
                yield number, line
        return
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(data)):
        text = _text(node)
        if " " in text.strip():
            for number, line in enumerate(text.split("\n"), getattr(node, "lineno", 0)):
                yield number, line


def _text(node: ast.AST) -> str:
    """The text of a string, and of an f-string with "0" in the place of its values; empty for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def without_code(line: str) -> str:
    """The line without inline code and the names of arguments before a colon."""
    return re.sub(r"^\s*[a-z_]+:(?= )", "", re.sub(r"``[^`]*``|`[^`]*`", "`", line))


def banned(line: str, file: str = "") -> list[str]:
    """The patterns that a line matches."""
    text = without_code(line)
    for (folder, pattern), _ in ALLOWED.items():
        if file.startswith(folder):
            text = re.sub(pattern, "", text, flags=re.IGNORECASE)
    return [pattern for pattern in (*BANNED, *BANNED_PHRASES) if re.search(pattern, text, re.IGNORECASE)]


def files() -> list[Path]:
    """All sources and pages; not the log of experiments and the history, which quote what was."""
    sources = [path for folder in ("sparsenmt", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in ("experiments.md", "glossary.md")]
    return sorted(
        path for path in [*sources, *pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"] if ".venvs" not in path.parts
    )


@functools.cache
def found() -> dict[str, list[str]]:
    """Pattern -> the lines that match it."""
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for path in files():
        file = path.relative_to(ROOT).as_posix()
        for number, line in prose(path):
            for pattern in banned(line, file):
                lines[pattern].append(f"{file}:{number}: {line.strip()[:110]}")
    return lines


@pytest.mark.parametrize("pattern", [*BANNED, *BANNED_PHRASES])
def test_banned_words_are_not_used(pattern: str) -> None:
    lines, use = found().get(pattern, []), BANNED.get(pattern)
    advice = f"write {use!r}" if use else "say it in plain words"
    assert not lines, f"{len(lines)} times {pattern}: {advice} (docs/reference/glossary.md)\n" + "\n".join(lines)


@pytest.mark.parametrize("allowed", ALLOWED, ids=str)
def test_what_is_allowed_is_used(allowed: tuple[str, str]) -> None:
    folder, pattern = allowed
    lines = (
        without_code(line)
        for path in files()
        if path.relative_to(ROOT).as_posix().startswith(folder)
        for _, line in prose(path)
    )
    found = (match.group() for line in lines for match in re.finditer(pattern, line, re.IGNORECASE))
    words = re.compile("|".join((*BANNED, *BANNED_PHRASES)), re.IGNORECASE)
    assert any(words.search(text) for text in found), "no line needs it"


def test_the_glossary_has_the_words_to_use() -> None:
    rows = [line.split("|")[1].strip() for line in GLOSSARY.read_bytes().decode().split("\n") if line.startswith("| ")]
    terms = {term.strip() for row in rows for term in row.split(",")}
    missing = {use for use in BANNED.values() if not {term.strip() for term in use.split(",")} <= terms}
    assert not missing


def test_terms_are_defined_once() -> None:
    rows = [line.split("|") for line in GLOSSARY.read_bytes().decode().split("\n") if line.startswith("| ")]
    terms = [term.strip() for row in rows for term in row[1].split(",") if term.strip() != "term"]
    assert len(terms) == len(set(terms)), sorted(term for term in terms if terms.count(term) > 1)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("The longest output, in pieces.", 1),
        ("The model's `pieces()` are tokens.", 0),
        ("A SentencePiece model.", 0),
        ("given heads come first", 1),
        ("The key `heads: {given: ...}` names them.", 0),
        ("The lines of the given text.", 0),
        ("pieces: the tokens of a line", 0),
        ("An ancestral search.", 1),
        ("Ancestral sampling draws tokens.", 0),
        ("Blind rows get zeros.", 1),
        ("colour-blind readers", 0),
        ("The searches of two batches are joined.", 1),
        ("labels, joined by `, `", 0),
        ("It goes on after line 7.", 1),
        ("The process that leads writes it.", 1),
        ("Mend the line.", 1),
        ("Recommend a value.", 0),
        ("Only so many lines of it.", 1),
        ("a bathroom is no room", 1),
    ],
)
def test_banned_words_are_found(line: str, count: int) -> None:
    assert len(banned(line)) == count
