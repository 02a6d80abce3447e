"""Print the numbers that say whether the package keeps the rules of its house, and the bars they must reach.

    python -m tools.house_numbers [CHECKOUT]

Reads the sources, imports none of them. Ends with one line of JSON: name, numbers, bars, ok; the exit code is 1 if a
number misses its bar. `tests/test_design_rules.py` uses the same functions.
"""

from __future__ import annotations

import ast
import functools
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "sparsenmt"

OPTIONAL_PACKAGES = {
    *(
        "HanTa",
        "ctranslate2",
        "matplotlib",
        "spacy",
        "stanza",
        "tensorboard",
        "tokenizers",
        "torch.utils.tensorboard",
        "transformers",
    ),
    *("rouge_score", "sacrebleu"),  # installed, but slow to load
    *("fcntl", "resource"),  # of the standard library, but not on every system
}
"""Packages that a function outside `commands/` may import: they may be missing, or slow down the start."""

REASONS = {
    "sparsenmt.commands.message_options": "two options of every command: no table of commands in it",
    "sparsenmt.data.features.source_features": "the features themselves; `feature_set` saves a set of them",
    "sparsenmt.data.features.word_frequency": "counts and ranks of words: no feature in it",
    "sparsenmt.data.prepare.stages": "what is done already in a directory: no text in it",
    "sparsenmt.data.tagging.taggers": "the tagging programs themselves, with their words and tags: no token in it",
    "sparsenmt.data.tokenizers.pipeline_description": "a file format, beside `sentencepiece_model`: no package is read",
    "sparsenmt.data.tokenizers.unigram_seeds": "an algorithm of its own, that sentencepiece lacks",
    "sparsenmt.decoding.side_by_side": "threads and what they are sent: no search or model in it, tested alone",
    "sparsenmt.decoding.copies": "the replacement of unknown tokens by attention: no search in it",
    "sparsenmt.native.trials": "the table of measurements: no kernel in it",
    "sparsenmt.evaluation.contrast.groups": "how items are grouped in tables: no model in it",
    "sparsenmt.evaluation.contrast.translation_suite": "one format of suites a file",
    "sparsenmt.report.fonts": "scripts, their fonts and packages: nothing is drawn in it, tested alone",
    "sparsenmt.importers.huggingface_search": "the settings of a search: no weights or tokenizers in it, tested alone",
    "sparsenmt.importers.huggingface_tokenizers": "the tokenizers of each family: no weights in it, tested alone",
    "sparsenmt.export.readme": "text that users read: no weights in it",
    "sparsenmt.export.to_ctranslate2": "one target program a file; imports an optional package",
    "sparsenmt.importers.marian_files": "a file format: no model in it, tested alone",
    "sparsenmt.importers.marian_shortlist": "the formats of shortlists: no tensor or architecture in it",
    "sparsenmt.model.compaction": "one function that drops, counts and merges positions (design rule 3), tested alone",
    "sparsenmt.model.content_attention": "attention by clusters of keys: no projection in it, tested alone",
    "sparsenmt.engine.candidates": "from logits to continuations: no model in it, tested alone",
    "sparsenmt.engine.native_decoder": "a step in one call: an alternative to layer by layer",
    "sparsenmt.engine.native_engine": "one engine a file",
    "sparsenmt.engine.native_encoder": "an encoder in one call: an alternative to layer by layer",
    "sparsenmt.recipe.checks": "what keys of a recipe mean together; `load` reads them one by one",
    "sparsenmt.sparsity.fixed_maps": "the attention maps of the paper, beside the heads that use them",
    "sparsenmt.data.prepare.encoder_pool": "processes and what they are sent: no stage or file in it, tested alone",
    "sparsenmt.training.gradient_buckets": "when and how gradients are summed: knows no loss, tested alone",
    "sparsenmt.process.allocator": "how the C library gives memory back: knows no training",
    "sparsenmt.workflows.evaluation.benchmark.workloads": "what is timed: measures nothing",
}
"""Module -> why it is a file of its own although a single module, of the same layer, imports it."""

PUBLIC = {"sparsenmt.__main__", "sparsenmt.model.interfaces"}
"""Modules that other programs import or start; `model.interfaces` is kept for plugins."""

LINES = {
    "the engine, the methods of five papers, their reports": 34_500,  # the bar of the reorganisation, kept at its end
    "hardening: hostile files, kernels that fail, streams and processes that end": 2_050,
    "measures: two-sided tests, scatter of seeds, the same scoring everywhere, chosen means, tables of papers": 1_700,
    "language models: texts without a source, segment memory, scores by distance and content": 4_700,
    "the first hour: text without spaces, unknown tokens, fonts and named axes, plain logs, options alike": 2_900,
    "importers: foreign files and tokenizers, languages, what their models need, a recurrence, shortlists": 4_300,
    "files of other programs: one door that bounds them and checks values before use": 250,
    "cut vocabularies: of each kind of tokenizer, of tables and shortlists": 700,
    "training of a part of a model: frozen parts, low-rank adapters": 450,
    "a part of a model: what a run trains and keeps, gates that stay open; options of imports without effect": 100,
    "production students at speed: an encoder in one call, a greedy search in one call": 650,
    "several processes: buckets of gradients, resume with another number, shared decode, score and prepare": 900,
    "training on a CPU: the loss, attention, dropout and products by their fastest operators, with gradients": 620,
    "kernels in wheels: instruction sets, sources, doctor": 480,
    "every machine: AMX, memory of training, number of threads, processes that leave a run": 60,
    "memory of decoding: one copy of a table; questions that a device is not asked": 200,
    "int8 without VNNI, windows in training, searches side by side, lines in blocks, large pages": 460,
    "two threads of a search: methods that both call, one C struct, one heap; what a lost process leaves": 30,
    "hours: windows without old buffers, models of one validation; the problems of training's kernels in own files": 50,
    "memory of an hour: moments from the start, few kernels of oneDNN": 15,
    "a GPU: fewer calls a step and an update, no kernels asked, benchmarks on a device": 60,
    "a validation of two sentences before training; one mask of the memory for all steps": 35,
    "kernels without memory, what they are kept for, and what they have lost; shapes that they check": 60,
    "the field: foreign tokenizers and search settings, text of any length and kind told, tests of few segments": 2_750,
}
"""The most lines of the package: what was planned for each part. New abilities get a line of their own here."""

BARS = {
    "function_imports": 0,
    "repeated_class_names": 0,
    "click_below_commands": 0,
    "one_importer_without_reason": 0,
    "modules_without_importer": 0,
    "stale_reasons": 0,
    "lines": sum(LINES.values()),
}
"""The most that each number may be."""


@dataclass(frozen=True)
class Import:
    """An import of one module by another.

    Args:
        importer: the module that imports.
        imported: the module, with the name in it for ``from module import name``.
        line: line number.
        in_function: True below a function.
        for_types: True inside ``if TYPE_CHECKING``.
    """

    importer: str
    imported: str
    line: int
    in_function: bool
    for_types: bool


@dataclass(frozen=True, eq=False)
class Package:
    """The parsed sources of a package.

    Args:
        folder: its folder.
        trees: module name -> syntax tree; a package is called like its folder.
        paths: module name -> file.
    """

    folder: Path
    trees: dict[str, ast.Module]
    paths: dict[str, Path]

    def place(self, module: str, line: int) -> str:
        """File and line, below the checkout."""
        return f"{self.paths[module].relative_to(self.folder.parent).as_posix()}:{line}"


@functools.cache
def read_package(checkout: Path = ROOT) -> Package:
    """Parse all modules of the package in a checkout."""
    folder = checkout / NAME
    paths = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(checkout).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return Package(folder, {name: ast.parse(path.read_bytes(), str(path)) for name, path in paths.items()}, paths)


# Imports


def imports(package: Package) -> Iterator[Import]:
    """All imports of all modules, relative ones resolved."""
    for module, tree in package.trees.items():
        is_folder = package.paths[module].name == "__init__.py"
        for node, in_function, for_types in _import_nodes(tree, False, False):
            for imported in _imported_names(node, module, is_folder):
                yield Import(module, imported, node.lineno, in_function, for_types)


def _import_nodes(
    node: ast.AST, in_function: bool, for_types: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, in_function, for_types
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _import_nodes(child, in_function or function, for_types or typing)


def _imported_names(node: ast.Import | ast.ImportFrom, module: str, is_folder: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = module.split(".")
        above = parts[: len(parts) - node.level + is_folder]
        base = ".".join([*above, *filter(None, [node.module])])
    return [f"{base}.{alias.name}" for alias in node.names]


def resolve(name: str, package: Package) -> str | None:
    """The module of the package that an imported name lies in; None: another package's."""
    while name:
        if name in package.trees:
            return name
        name = name.rpartition(".")[0]
    return None


def function_imports(package: Package) -> list[str]:
    """Imports in functions outside `commands/`, and of what is always there: place and import."""
    return [
        f"{package.place(each.importer, each.line)}: {each.imported}"
        for each in imports(package)
        if each.in_function and not _in(each.importer, "commands") and not is_optional(each.imported)
    ]


def type_checking_imports(package: Package) -> list[str]:
    """Blocks of imports for type checkers, outside `commands/`, that have no comment with their reason.

    Optional packages need no comment.
    """
    found = []
    for module, tree in package.trees.items():
        lines = package.paths[module].read_bytes().decode().split("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                names = [name for each in node.body for name in _names_of(each, module)]
                if all(map(is_optional, names)):
                    continue
                above, beside = lines[node.lineno - 2].strip(), lines[node.lineno - 1]
                if not above.startswith("#") and "#" not in beside and not _in(module, "commands"):
                    found.append(package.place(module, node.lineno))
    return found


def _names_of(statement: ast.stmt, module: str) -> list[str]:
    return _imported_names(statement, module, False) if isinstance(statement, ast.Import | ast.ImportFrom) else [""]


def is_optional(imported: str) -> bool:
    """True if an import is of a package that may be missing or is slow to load."""
    return any(imported == name or imported.startswith(f"{name}.") for name in OPTIONAL_PACKAGES)


def click_below_commands(package: Package) -> list[str]:
    """Imports of click outside `cli` and `commands/`."""
    return [
        f"{package.place(each.importer, each.line)}: {each.imported}"
        for each in imports(package)
        if each.imported.split(".")[0] == "click"
        and not _in(each.importer, "commands")
        and not _in(each.importer, "cli")
    ]


def _in(module: str, folder: str) -> bool:
    return f"{module}.".startswith(f"{NAME}.{folder}.")


# Modules and their importers


def importers(package: Package) -> dict[str, set[str]]:
    """Module -> the other modules that import it, or name it in a string, as tables of lazy imports do."""
    found: dict[str, set[str]] = {module: set() for module in package.trees}
    for each in imports(package):
        target = resolve(each.imported, package)
        if target and target != each.importer:
            found[target].add(each.importer)
    for module, tree in package.trees.items():
        for name in _named_modules(tree, package):
            if name != module:
                found[name].add(module)
    return found


@functools.cache
def _prefixes(package: Package) -> set[str]:
    """The beginnings of f-strings that make the name of a module: `sparsenmt.commands.` and the like."""
    return {
        str(node.values[0].value)
        for tree in package.trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        and isinstance(node.values[0], ast.Constant)
        and str(node.values[0].value).startswith(f"{NAME}.")
    }


def _named_modules(tree: ast.Module, package: Package) -> Iterator[str]:
    """Modules that string constants name, `module` or `module:attribute`, from the root or behind a prefix."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
            name = node.value.split(":")[0]
            for candidate in (name, *(prefix + name for prefix in _prefixes(package))):
                if candidate in package.trees and candidate != NAME:
                    yield candidate


def one_importer_modules(package: Package) -> dict[str, tuple[str, str | None]]:
    """Module -> (its only importer, why it is a file of its own, or None without a reason).

    A module whose importer lies in another layer cannot go back into it, and one that a table names is loaded alone.
    """
    named = {(module, name) for module, tree in package.trees.items() for name in _named_modules(tree, package)}
    found = {}
    for module, users in importers(package).items():
        if len(users) == 1 and package.paths[module].name != "__init__.py":
            (user,) = users
            reason = REASONS.get(module)
            if module.split(".")[1] != user.split(".")[1:2][0]:
                reason = f"the layer `{module.split('.')[1]}`"
            elif (user, module) in named or module.startswith(f"{NAME}.commands.analyze."):
                reason = "an entry of a table"
            found[module] = (user, reason)
    return found


def modules_without_importer(package: Package) -> list[str]:
    """Modules that nothing imports or names."""
    return [
        module
        for module, found in importers(package).items()
        if not found and package.paths[module].name != "__init__.py" and module not in PUBLIC
    ]


def stale_reasons(package: Package) -> list[str]:
    """Reasons that no module needs any more."""
    lonely = one_importer_modules(package)
    return [module for module, reason in REASONS.items() if lonely.get(module, ("", None))[1] != reason]


# Classes and sizes


def class_names(package: Package) -> dict[str, list[str]]:
    """Name of a class -> where classes of that name are defined."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module, tree in package.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(package.place(module, node.lineno))
    return dict(found)


def repeated_class_names(package: Package) -> dict[str, list[str]]:
    """Names that more than one class has."""
    return {name: places for name, places in class_names(package).items() if len(places) > 1}


def line_count(path: Path) -> int:
    """The lines of a file."""
    return path.read_bytes().count(b"\n")


def command_files(package: Package) -> tuple[int, int, str, int]:
    """Files in `commands/` without sub-folders, with them, the longest, and its lines; `__init__` does not count."""
    folder = package.folder / "commands"
    every = [path for path in folder.rglob("*.py") if path.name != "__init__.py"]
    longest = max(every, key=line_count)
    direct = sum(path.parent == folder for path in every)
    return direct, len(every), longest.relative_to(folder).as_posix(), line_count(longest)


# The report


def numbers(package: Package) -> dict[str, int | str]:
    """All numbers of the house."""
    direct, every, longest, longest_lines = command_files(package)
    lonely = one_importer_modules(package)
    sizes = {module: line_count(path) for module, path in package.paths.items()}
    return {
        "command_files": direct,
        "command_files_with_reports": every,
        "longest_command": longest,
        "longest_command_lines": longest_lines,
        "function_imports": len(function_imports(package)),
        "repeated_class_names": len(repeated_class_names(package)),
        "click_below_commands": len(click_below_commands(package)),
        "one_importer_modules": len(lonely),
        "one_importer_without_reason": sum(reason is None for _, reason in lonely.values()),
        "modules_without_importer": len(modules_without_importer(package)),
        "stale_reasons": len(stale_reasons(package)),
        "modules": len(sizes),
        "longest_file": max(sizes, key=lambda module: sizes[module]),
        "longest_file_lines": max(sizes.values()),
        "lines": sum(sizes.values()),
    }


def report(package: Package) -> str:
    """Return the lists behind the numbers as text."""
    sections = [
        ("Function-level imports outside commands/", function_imports(package)),
        (
            "Classes whose name is used twice",
            [f"{k}: {', '.join(v)}" for k, v in repeated_class_names(package).items()],
        ),
        ("Imports of click below commands", click_below_commands(package)),
        (
            "Modules with one importer",
            [f"{k} <- {i}: {why or 'NO REASON'}" for k, (i, why) in sorted(one_importer_modules(package).items())],
        ),
        ("Modules that nothing imports", modules_without_importer(package)),
        ("Reasons that no module needs", stale_reasons(package)),
    ]
    return "\n".join(f"{title}: {len(lines)}\n" + "".join(f"  {line}\n" for line in lines) for title, lines in sections)


def main() -> None:
    """Print the report of a checkout."""
    package = read_package(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    found = numbers(package)
    ok = all(int(found[name]) <= bar for name, bar in BARS.items())
    print(report(package))
    for name, value in found.items():
        print(f"{name:28}{value:>24}" + (f"   at most {BARS[name]}" if name in BARS else ""))
    print(json.dumps({"name": "house_numbers", "numbers": found, "bars": BARS, "ok": ok}))
    sys.exit(not ok)


if __name__ == "__main__":
    main()
