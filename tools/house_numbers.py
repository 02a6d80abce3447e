"""Print the numbers that say whether the package keeps the rules of its house, and the bars they must reach.

    python -m tools.house_numbers [CHECKOUT]

Reads the sources, imports none of them. Ends with one line of JSON: name, numbers, bars, open (the numbers that miss
their bars), ok; the exit code is 1 if a number misses its bar. `tests/test_design_rules.py` uses the same functions,
and fails for a number that misses its bar unless `OPEN` has it.
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
CPP = (".cpp", ".h")

OPTIONAL_PACKAGES = {
    *("HanTa", "ctranslate2", "matplotlib", "mlflow", "pycld2", "spacy", "stanza", "tokenizers"),
    *("jinja2", "markupsafe", "torch.utils.tensorboard", "trackio", "wandb"),
    *("importlib", "rouge_score", "sacrebleu"),  # installed, but slow to load
    *("fcntl", "resource"),  # of the standard library, but not on every system
}
"""Packages that a function outside `commands/` may import: they may be missing, or slow down the start."""

_SECTIONS = ("data_checks", "decoding_section")
REASONS = {
    **{f"sparsenmt.recipe.{name}": "the keys of one section or part" for name in _SECTIONS},
    "sparsenmt.commands.message_options": "two options of every command: no table of commands in it",
    "sparsenmt.data.features.source_features": "the features themselves; `feature_set` saves a set of them",
    "sparsenmt.data.features.word_frequency": "counts and ranks of words: no feature in it",
    "sparsenmt.data.tagging.taggers": "the tagging programs themselves, with their words and tags: no token in it",
    "sparsenmt.data.tokenizers.pipeline_description": "a file format, beside `sentencepiece_model`: no package is read",
    "sparsenmt.data.tokenizers.subword_sampler": "distributions of divisions: no epoch, corpus or line in it",
    "sparsenmt.data.tokenizers.unigram_seeds": "an algorithm of its own, that sentencepiece lacks",
    **{f"sparsenmt.decoding.{name}": "no other search in it" for name in ("copies", "side_by_side", "term_search")},
    "sparsenmt.workflows.decoding.marked_input": "tags and kept parts between reading and writing: no model in it",
    "sparsenmt.evaluation.contrast.groups": "how items are grouped in tables: no model in it",
    "sparsenmt.evaluation.contrast.translation_suite": "one format of suites a file",
    "sparsenmt.workflows.training.sweep_table": "the layout of tables: nothing is trained or measured in it",
    **{f"sparsenmt.report.page.{each}": "no HTML in it" for each in ("packed_maps", "page_text", "panel_shapes")},
    "sparsenmt.report.fonts": "scripts, their fonts and packages: nothing is drawn in it, tested alone",
    **{
        f"sparsenmt.importers.huggingface_{each}": "no weights in it, tested alone" for each in ("search", "tokenizers")
    },
    "sparsenmt.export.activation_ranges": "what a model computes on a text: no file in it",
    **{f"sparsenmt.export.marian_{each}": "one kind of file each" for each in ("files", "vocabularies", "weights")},
    "sparsenmt.model.compaction": "one function that drops, counts and merges positions (design rule 3), tested alone",
    "sparsenmt.model.content_attention": "attention by clusters of keys: no projection in it, tested alone",
    "sparsenmt.engine.kernel_trials": "the problems that are measured for the table of choices: also for its tool",
    "sparsenmt.engine.fixed_cache": "a cache of fixed addresses: no graph in it",
    **{f"sparsenmt.engine.native_{each}coder": "one call in place of layer by layer" for each in ("de", "en")},
    "sparsenmt.recipe.checks": "what keys of a recipe mean together; `load` reads them one by one",
    "sparsenmt.recipe.data_sections": "the sections about data; `schema` has the others, and all names",
    "sparsenmt.sparsity.simplex.blockwise": "attention on a GPU: no transform in it",
    "sparsenmt.sparsity.fixed_maps": "the attention maps of the paper, beside the heads that use them",
    "sparsenmt.testing.calls": "how calls of methods are recorded: no property in it",
    "sparsenmt.testing.device": "what a device is asked for in each part of a run, and how often it may be",
    "sparsenmt.testing.forced_gates": "gates of every kind in front of transforms: no method's filter in it",
    "sparsenmt.testing.language_models": "the rules of a model without an encoder",
    "sparsenmt.testing.properties": "what a method may depend on, by calls of it; `checks` compares whole models",
    "sparsenmt.testing.smallest_case": "the search for a smaller case: no rule in it",
    "sparsenmt.training.uploads": "the side stream of a device: no corpus in it, tested alone",
    "sparsenmt.training.gradient_buckets": "when and how gradients are summed: knows no loss, tested alone",
    "sparsenmt.workflows.decoding.minimum_risk": "candidates and the choice among them: no input or output in it",
    **{f"sparsenmt.workflows.evaluation.report.{n}": "sections" for n in ("figures", "quality", "sentences", "words")},
    "sparsenmt.workflows.evaluation.method_gain": "one method against its dense twin: no quality or test in it",
    **{f"sparsenmt.workflows.plan.{name}": "an output: measures nothing" for name in ("plan_table", "training_steps")},
    "sparsenmt.workflows.evaluation.benchmark.workloads": "what is timed: measures nothing",
}
"""Module -> why it is a file of its own although a single module, of the same layer, imports it."""

PUBLIC = {"sparsenmt.__main__", "sparsenmt.testing.pytest_plugin"}
"""Modules that other programs import or start."""

TOP = "(top)"
"""The name of the package's modules that lie in no folder of it."""

BUDGETS: dict[str, tuple[int, int]] = {
    "(top)": (1_020, 0),
    "analysis": (4_780, 0),
    "api": (880, 0),
    "assemble": (1_800, 0),
    "commands": (3_510, 0),
    "data": (9_730, 0),
    "decoding": (4_290, 0),
    "depth_selector": (1_090, 0),
    "engine": (3_155, 0),
    "evaluation": (3_190, 0),
    "export": (1_760, 0),
    "importers": (3_260, 0),
    "model": (4_860, 0),
    "native": (2_860, 3_085),
    "plugins": (610, 0),
    "process": (1_195, 0),
    "recipe": (4_220, 0),
    "report": (2_510, 0),
    "sparsity": (3_550, 920),
    "storage": (1_685, 0),
    "testing": (3_215, 0),
    "training": (3_000, 0),
    "workflows": (13_210, 0),
}
"""Package -> the most lines of Python and of C++ in it, fixed for a release: what needs more says what it removes."""

BARS = {
    "function_imports": 0,
    "repeated_class_names": 0,
    "click_below_commands": 0,
    "one_importer_without_reason": 0,
    "modules_without_importer": 0,
    "stale_reasons": 0,
    "over_budget": 0,
    "stale_budgets": 0,
    "lines": 50_000,
    "lines_of_cpp": 4_000,
    "import_circles": 0,
    "kernel_importers": 0,
    "members_of_engine": 8,
    "members_of_training_protocol": 16,
    "methods_of_transformer": 20,
    "bytes_of_pages": 275_000,
}
"""The most that each number may be."""

MISSING = "no such class"
"""The number of members of a class that is not there."""

OPEN: dict[str, int | str] = {"lines": 79_287}
"""Number -> its greatest value as long as it misses its bar. One that reaches its bar is taken out."""


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


@functools.cache
def imports(package: Package) -> list[Import]:
    """All imports of all modules, relative ones resolved."""
    return [
        Import(module, imported, node.lineno, in_function, for_types)
        for module, tree in package.trees.items()
        for node, in_function, for_types in _import_nodes(tree, False, False)
        for imported in _imported_names(node, module, package.paths[module].name == "__init__.py")
    ]


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


@functools.cache
def importers(package: Package, *, named: bool = True) -> dict[str, set[str]]:
    """Module -> the other modules that import it.

    Args:
        named: count those that name it in a string, too, as tables of lazy imports do.
    """
    found: dict[str, set[str]] = {module: set() for module in package.trees}
    for each in imports(package):
        target = resolve(each.imported, package)
        if target and target != each.importer:
            found[target].add(each.importer)
    for module, name in _named_modules(package) if named else ():
        if name != module:
            found[name].add(module)
    return found


@functools.cache
def _named_modules(package: Package) -> set[tuple[str, str]]:
    """A module, and one that a string constant in it names, as `module` or `module:attribute`, also behind a prefix."""
    nodes = [(module, node) for module, tree in package.trees.items() for node in ast.walk(tree)]
    joined = (node.values[0] for _, node in nodes if isinstance(node, ast.JoinedStr))  # with what f-strings begin
    starts = {str(each.value) for each in joined if isinstance(each, ast.Constant)}
    prefixes, found = ["", *(each for each in starts if each.startswith(f"{NAME}."))], set()
    for module, node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
            for candidate in (prefix + node.value.split(":")[0] for prefix in prefixes):
                if candidate in package.trees and candidate not in (NAME, f"{NAME}.__main__"):
                    found.add((module, candidate))
    return found


@functools.cache
def one_importer_modules(package: Package) -> dict[str, tuple[str, str | None]]:
    """Module -> (its only importer, why it is a file of its own, or None without a reason).

    A module whose importer lies in another layer cannot go back into it, and one that a table names is loaded alone.
    """
    named, found = _named_modules(package), {}
    for module, users in importers(package).items():
        if len(users) == 1 and package.paths[module].name != "__init__.py":
            (user,) = users
            reason = REASONS.get(module)
            if module.split(".")[1:2] != user.split(".")[1:2]:
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


def stale_exceptions(package: Package) -> list[str]:
    """Optional packages that no function imports, and public modules that are not there or are imported."""
    in_functions = {each.imported for each in imports(package) if each.in_function or each.for_types}
    unused = [
        name
        for name in sorted(OPTIONAL_PACKAGES)
        if not any(f"{each}.".startswith(f"{name}.") for each in in_functions)
    ]
    users = importers(package)
    return unused + [module for module in sorted(PUBLIC) if users.get(module, {""})]


def import_circles(package: Package) -> list[list[str]]:
    """Groups of modules that import each other, imports for type checkers and in functions counted."""
    imported: defaultdict[str, set[str]] = defaultdict(set)
    for module, users in importers(package, named=False).items():
        for user in users:
            imported[user].add(module)

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = imported[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    all_reached = {module: reached(module) for module in package.trees}
    circles = {
        tuple(sorted(other for other in found if module in all_reached[other]))
        for module, found in all_reached.items()
        if module in found
    }
    return [list(circle) for circle in sorted(circles)]


def kernel_importers(package: Package) -> list[str]:
    """Modules outside `native/` and `engine/` that import what is in `native/`."""
    users = {each.importer for each in imports(package) if _in(each.imported, "native")}
    return sorted(user for user in users if not _in(user, "native") and not _in(user, "engine"))


# Classes and sizes


@functools.cache
def _classes(package: Package) -> list[tuple[str, ast.ClassDef]]:
    """Module and definition of every class."""
    nodes = ((module, node) for module, tree in package.trees.items() for node in ast.walk(tree))
    return [(module, node) for module, node in nodes if isinstance(node, ast.ClassDef)]


def class_names(package: Package) -> dict[str, list[str]]:
    """Name of a class -> where classes of that name are defined."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module, node in _classes(package):
        found[node.name].append(package.place(module, node.lineno))
    return dict(found)


def repeated_class_names(package: Package) -> dict[str, list[str]]:
    """Names that more than one class has."""
    return {name: places for name, places in class_names(package).items() if len(places) > 1}


def members(package: Package, name: str) -> list[str] | None:
    """Functions and annotated attributes of a class and of its bases in the package; None: there is no such class."""
    classes = {node.name: node for _, node in _classes(package)}
    if name not in classes:
        return None
    found = []
    for base in classes[name].bases:
        found += members(package, ast.unparse(base)) or []
    for statement in classes[name].body:
        match statement:
            case ast.FunctionDef(name=member) | ast.AnnAssign(target=ast.Name(id=member)):
                found.append(member)
    return sorted(set(found))


def count_members(package: Package, name: str) -> int | str:
    """The number of `members`, or `MISSING`."""
    found = members(package, name)
    return MISSING if found is None else len(found)


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


def package_lines(package: Package) -> dict[str, tuple[int, int]]:
    """Package (folder of the root, or `TOP`) -> its lines of Python and of C++."""
    found: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for path in package.folder.rglob("*"):
        is_cpp = path.suffix in CPP
        if is_cpp or path.suffix == ".py":
            folders, lines = path.relative_to(package.folder).parts[:-1], line_count(path)
            python, cpp = found[folders[0] if folders else TOP]
            found[folders[0] if folders else TOP] = (python, cpp + lines) if is_cpp else (python + lines, cpp)
    return dict(sorted(found.items()))


def over_budget(package: Package) -> list[str]:
    """Packages that have more lines than their budget, or none."""
    return [
        f"{name}: {lines} lines of {language}, not {budget}"
        for name, counts in package_lines(package).items()
        for language, lines, budget in zip(("Python", "C++"), counts, BUDGETS.get(name, (0, 0)), strict=True)
        if lines > budget
    ]


def stale_budgets(package: Package) -> list[str]:
    """Budgets of packages that are not there."""
    return sorted(BUDGETS.keys() - package_lines(package).keys())


def pages(package: Package) -> dict[str, int]:
    """Page of the documentation -> bytes; generated pages and the records of what was measured do not count."""
    folder = package.folder.parent / "docs"
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.md"))}
    return {
        name: len(text)
        for name, text in files.items()
        if not name.startswith("records/") and b"<!-- Generated from " not in text[:1000]
    }


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
        "over_budget": len(over_budget(package)),
        "stale_budgets": len(stale_budgets(package)),
        "lines": sum(sizes.values()),
        "lines_of_cpp": sum(cpp for _, cpp in package_lines(package).values()),
        "import_circles": len(import_circles(package)),
        "kernel_importers": len(kernel_importers(package)),
        "members_of_engine": count_members(package, "Engine"),
        "members_of_training_protocol": count_members(package, "TranslationModel"),
        "methods_of_transformer": count_members(package, "Transformer"),
        "bytes_of_pages": sum(pages(package).values()),
    }


def missed(found: dict[str, int | str]) -> list[str]:
    """Numbers that do not reach their bars."""
    return [name for name, bar in BARS.items() if not reaches(found[name], bar)]


def reaches(value: int | str, bar: int | str) -> bool:
    """Return True if a number is at most a bar. A class that is missing reaches only a bar that says so."""
    return value == bar if isinstance(value, str) or isinstance(bar, str) else value <= bar


def broken(found: dict[str, int | str]) -> list[str]:
    """Describe the numbers that miss their bars but are not in `OPEN`, are worse than there, or are there in vain."""
    wrong = [f"{name}: {found[name]}, not {BARS[name]}" for name in missed(found) if name not in OPEN]
    for name, before in OPEN.items():
        if name not in missed(found):
            wrong.append(f"{name}: {found[name]} reaches its bar: take it out of OPEN")
        elif before != MISSING and not reaches(found[name], before):
            wrong.append(f"{name}: {found[name]}, was {before}, and shall be {BARS[name]}")
    return wrong


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
        ("Circles of imports", [" <-> ".join(circle) for circle in import_circles(package)]),
        ("Modules outside native/ and engine/ that import kernels", kernel_importers(package)),
        ("Pages, without records/ and generated ones", [f"{k}: {v} bytes" for k, v in pages(package).items()]),
        (
            "Lines of Python and C++, and their budgets",
            [f"{k}: {v}, budget {BUDGETS.get(k, 'none')}" for k, v in package_lines(package).items()],
        ),
        ("Packages over their budget", over_budget(package)),
        ("Budgets of no package", stale_budgets(package)),
    ]
    return "\n".join(f"{title}: {len(lines)}\n" + "".join(f"  {line}\n" for line in lines) for title, lines in sections)


def main() -> None:
    """Print the report of a checkout."""
    package = read_package(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    found = numbers(package)
    still_open = missed(found)
    print(report(package))
    for name, value in found.items():
        print(f"{name:28}{value:>24}" + (f"   at most {BARS[name]}" if name in BARS else ""))
    line = {"name": "house_numbers", "numbers": found, "bars": BARS, "open": still_open, "ok": not still_open}
    print(json.dumps(line))
    sys.exit(bool(still_open))


if __name__ == "__main__":
    main()
