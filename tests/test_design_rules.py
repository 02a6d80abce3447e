"""Rules of docs/rules.md that can be read off the source: names, sizes, and what may not be called."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tools import house_numbers

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sparsenmt"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

LONG_FILES: dict[str, str] = {}
"""File -> why it is one idea although it is longer than `MAX_FILE_LINES`."""

# Names that say nothing outside their file.
EMPTY_CLASS_NAMES = {"Found", "Job", "Work", "Plan", "Cell", "Block"}

# Nouns of the field that end like a gerund or a participle.
NOUNS = {
    *("batching", "decoding", "embedding", "packing", "sampling", "scoring", "tagging", "testing", "training"),
}
EMPTY_OPENINGS = re.compile(r"(What|Whether|How|Of|So many|Where|As)\b")

# Rule 2: the folders that may not know a method by name.
NAMELESS = ("model", "training", "decoding", "data", "recipe")

# Method names that are words of the field as well: an identifier that holds one says nothing about the method
# (`torch.topk`, `F.softmax`, `numpy.random`, a decoder block). As a whole string they are forbidden like all others.
ORDINARY_WORDS = {
    *("full", "window", "block", "dilated", "global", "random"),
    *("softmax", "topk", "plain", "recurrent"),
    *("pos", "freq", "inv_freq", "group"),
}

# (file under sparsenmt/, string): places where a string means something else than the method.
ALLOWED_STRINGS = {
    ("recipe/method_choice.py", "full"): "default of `pattern`",
    ("recipe/method_choice.py", "softmax"): "default of `transform`",
    ("recipe/schema.py", "plain"): "default of `depth`",
    ("training/checkpoints.py", "random"): "the states of random generators",
}

PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
STDIN_ATTRIBUTES = {"buffer", "fileno", "isatty"}  # of sys.stdin: everything else reads with universal newlines


def python_files(*folders: str) -> list[Path]:
    """All Python files of these folders of the repository, other people's environments left out."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py") if ".venvs" not in path.parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}"


def assert_none(found: Iterable[str], rule: str) -> None:
    lines = list(found)
    assert not lines, f"{len(lines)} against the rule: {rule}:\n" + "\n".join(lines)


# Rule 2: no method's name


def identifiers(node: ast.AST) -> Iterator[str]:
    """The names that a node introduces or uses."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name, asname=alias):
            yield name
            if alias:
                yield alias


def squeeze(name: str) -> str:
    """`TiedMultiPlan`, `tied_multi` -> lower case without underscores, so that both spellings are found."""
    return name.replace("_", "").lower()


def method_names(module: ast.Module, names: set[str]) -> Iterator[tuple[ast.AST, str, bool]]:
    """(node, what was found, whether it is a string) for every mention of a method."""
    distinctive = {squeeze(name) for name in names - ORDINARY_WORDS}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = set(re.split(r"[./:]", node.value)) if " " not in node.value else set()
            if node.value in names or parts & (names - ORDINARY_WORDS):
                yield node, node.value, True
        for identifier in identifiers(node):
            if any(name in squeeze(identifier) for name in distinctive):
                yield node, identifier, False


def test_no_method_is_named_in_the_engine() -> None:
    from sparsenmt.sparsity.registry import methods

    names = {name for socket in methods().values() for name in socket}
    assert {"full", "softmax", "plain"} <= names, "the registry lost its defaults: this test would look for nothing"
    used = set()

    def mentions() -> Iterator[str]:
        for path in python_files(*(f"sparsenmt/{folder}" for folder in NAMELESS)):
            for node, found, is_string in method_names(tree(path), names):
                used.add((path.relative_to(PACKAGE).as_posix(), found))
                if not is_string or (path.relative_to(PACKAGE).as_posix(), found) not in ALLOWED_STRINGS:
                    yield f"{place(path, node)}: {found!r}"

    assert_none(mentions(), "the engine names sparsity methods (design rule 2)")
    assert_none(map(str, ALLOWED_STRINGS.keys() - used), "what is allowed is there")
    assert_none(ORDINARY_WORDS - names, "an ordinary word is a method's name, too")


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("kind = 'softmax'", 1),
        ("weights = torch.softmax(scores, -1)", 0),
        ("key = 'memory.l0drop.0'", 1),
        ("'''Gates as in l0drop are scaled here.'''", 0),
        ("class TiedMultiPlan: pass", 1),
        ("def f(tied_multi=False): pass", 1),
        ("f(l0drop=1)", 1),
        ("from x import L0Drop as Filter", 1),
        ("values, indices = scores.topk(4)", 0),
        ("mode = 'softmax over keys'", 0),
    ],
)
def test_mentions_of_a_method_are_found(code: str, count: int) -> None:
    names = {"softmax", "topk", "l0drop", "tied_multi"}
    assert len(list(method_names(ast.parse(code), names))) == count


# Rule 14: sizes


def function_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, without decorators and docstring."""
    docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
    skipped = (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1 if docstring else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - skipped


def test_files_and_functions_are_short() -> None:
    def long_ones() -> Iterator[str]:
        for path in python_files("sparsenmt", "tests", "benchmarks", "tools"):
            lines, name = house_numbers.line_count(path), path.relative_to(ROOT).as_posix()
            if lines > MAX_FILE_LINES and name not in LONG_FILES:
                yield f"{name}: {lines} lines"
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    length = function_length(node)
                    if length >= MAX_FUNCTION_LINES:
                        yield f"{place(path, node)}: {node.name} has {length} lines"

    assert_none(long_ones(), f"at most {MAX_FILE_LINES} lines a file, fewer than {MAX_FUNCTION_LINES} a function")


# Rule 14: modules and classes are found by their names


@functools.cache
def package() -> house_numbers.Package:
    return house_numbers.read_package(ROOT)


def test_class_names_are_unique() -> None:
    repeated = house_numbers.repeated_class_names(package())
    assert_none((f"{name}: {', '.join(places)}" for name, places in repeated.items()), "one class a name")


def test_class_names_say_what_the_class_is() -> None:
    names = house_numbers.class_names(package())
    found = (f"{places[0]}: {name}" for name, places in names.items() if name in EMPTY_CLASS_NAMES)
    assert_none(found, "a class name says what it is anywhere in the program")


def verb_form(module: str) -> bool:
    """Return True if a module is named by a gerund or a participle; methods are called as recipes call them."""
    if module.startswith("sparsenmt.sparsity."):
        return False
    word = module.split(".")[-1].split("_")[-1]
    return bool(re.fullmatch(r"\w{2,}(ing|ings|ed)", word)) and word.removesuffix("s") not in NOUNS


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("sparsenmt.commands.attending", True),
        ("sparsenmt.data.shuffled", True),
        ("sparsenmt.training", False),
        ("sparsenmt.data.tagging.tagged_text", False),
        ("sparsenmt.model.embeddings", False),
        ("sparsenmt.decoding.kept_translations", False),
    ],
)
def test_verb_forms_are_found(module: str, expected: bool) -> None:
    assert verb_form(module) is expected


def test_modules_are_named_by_nouns() -> None:
    assert_none(filter(verb_form, package().trees), "no module is named by a gerund or a participle")
    words = {module.split(".")[-1].split("_")[-1].removesuffix("s") for module in package().trees}
    assert_none(NOUNS - words, "a noun that looks like a verb is a module's name")


# Rule 14: imports


def test_functions_import_nothing() -> None:
    found = house_numbers.function_imports(package())
    assert_none(found, "imports stand at the top, outside commands/ and but for optional packages")


def test_imports_for_type_checkers_have_a_reason() -> None:
    found = house_numbers.type_checking_imports(package())
    assert_none(found, "`if TYPE_CHECKING` has a comment that names the cycle")


def test_no_command_calls_a_command() -> None:
    from sparsenmt.command import COMMANDS

    modules = {f"sparsenmt.commands.{entry.module}" for entry in COMMANDS.values()}
    modules = {module for module in modules if not module.startswith("sparsenmt.commands.analyze.")}
    found = (
        f"{package().place(each.importer, each.line)}: {each.imported}"
        for each in house_numbers.imports(package())
        if house_numbers.resolve(each.imported, package()) in modules
    )
    assert_none(found, "commands are only called by the command line")


def test_modules_with_one_importer_have_a_reason() -> None:
    lonely = house_numbers.one_importer_modules(package())
    found = (f"{module}, imported by {user}" for module, (user, reason) in lonely.items() if reason is None)
    assert_none(found, "a module with one importer goes back into it, or has a reason in tools/house_numbers.py")
    assert_none(house_numbers.stale_reasons(package()), "a reason in tools/house_numbers.py is of use")
    assert_none(house_numbers.modules_without_importer(package()), "every module is used")
    assert_none(house_numbers.stale_exceptions(package()), "an exception in tools/house_numbers.py is of use")


def test_numbers_keep_their_bars() -> None:
    found = house_numbers.broken(house_numbers.numbers(package()))
    assert_none(found, "the numbers of tools/house_numbers.py keep their bars")


def test_packages_keep_their_budgets() -> None:
    assert_none(house_numbers.over_budget(package()), "a package that needs more lines says what it removes")
    assert_none(house_numbers.stale_budgets(package()), "a budget has its package")


# The language


def docstrings(module: ast.Module) -> Iterator[ast.Constant]:
    """All docstrings, those of attributes too."""
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str()) as constant):
                        yield constant


def empty_openings(module: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings that begin with a subordinate clause."""
    return (each for each in docstrings(module) if EMPTY_OPENINGS.match(str(each.value).lstrip()))


def test_docstrings_begin_with_an_imperative_or_a_noun() -> None:
    def mistakes() -> Iterator[str]:
        for path in python_files("sparsenmt", "benchmarks", "tools"):
            for node in empty_openings(tree(path)):
                yield f"{place(path, node)}: {str(node.value).strip()[:60]}"

    assert_none(mistakes(), f"no docstring begins with {EMPTY_OPENINGS.pattern}")


def test_help_texts_begin_with_an_imperative_or_a_noun() -> None:
    def mistakes() -> Iterator[str]:
        for path in python_files("sparsenmt/commands"):
            for node in ast.walk(tree(path)):
                match node:
                    case ast.keyword(arg="help" | "short_help", value=ast.Constant(value=str(text))):
                        if EMPTY_OPENINGS.match(text) or text.startswith(("Whose", "Only so many")):
                            yield f"{place(path, node.value)}: {text[:60]}"

    assert_none(mistakes(), f"no help text begins with {EMPTY_OPENINGS.pattern}")


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("'''What a batch is.'''", 1),
        ("def f():\n    '''Whether it is open.'''", 1),
        ("class C:\n    '''A batch.'''\n    x: int\n    '''So many lines.'''", 1),
        ("def f():\n    '''Return True if it is open.'''", 0),
        ("def f():\n    '''Assign slots to rows.'''", 0),
        ("text = 'How long it takes.'", 0),
    ],
)
def test_empty_openings_are_found(code: str, count: int) -> None:
    assert len(list(empty_openings(ast.parse(code)))) == count


# Rule 10: no pickle is ever loaded


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((item.value for item in call.keywords if item.arg == name), None)


def pickle_uses(module: ast.Module) -> Iterator[ast.AST]:
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    only = {id(call.func): keyword(call, "weights_only") for call in calls}  # tensors: the pickles of other programs
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names) if any(alias.name.split(".")[0] in PICKLES for alias in names):
                yield node
            case ast.ImportFrom(module=str(name)) if name.split(".")[0] in PICKLES:
                yield node
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as name):
                given = only.get(id(node))
                if not (name == "load" and isinstance(given, ast.Constant) and given.value is True):
                    yield node
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="load")):
                allowed = keyword(node, "allow_pickle")
                if not (isinstance(allowed, ast.Constant) and allowed.value is False):
                    yield node


def test_no_pickle_is_loaded() -> None:
    files = python_files("sparsenmt", "benchmarks")
    assert_none((place(path, node) for path in files for node in pickle_uses(tree(path))), "pickle (design rule 10)")


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import pickle", 1),
        ("from joblib import load", 1),
        ("torch.load('x')", 1),
        ("torch.load('x', weights_only=wanted)", 1),
        ("torch.load('x', weights_only=True)", 0),
        ("np.load('x')", 1),
        ("np.load('x', allow_pickle=True)", 1),
        ("np.load('x', allow_pickle=False)", 0),
        ("safetensors.torch.load_file('x')", 0),
    ],
)
def test_uses_of_pickle_are_found(code: str, count: int) -> None:
    assert len(list(pickle_uses(ast.parse(code)))) == count


# Lines end at \n only


def text_mode(call: ast.Call) -> bool:
    """Whether a call opens a file as text."""
    constants = [
        argument.value
        for argument in [*call.args, keyword(call, "mode")]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    modes = [value for value in constants if re.fullmatch(r"[rwax][bt+]*", value)]
    match call.func:
        case ast.Attribute(value=ast.Name(id="gzip" | "bz2" | "lzma"), attr="open"):
            return any("t" in mode for mode in modes)  # binary by default
        case ast.Name(id="open") | ast.Attribute(value=ast.Name(id="io"), attr="open") | ast.Attribute(attr="fdopen"):
            return not any("b" in mode for mode in modes)
        case ast.Attribute(value=receiver, attr="open"):  # of a path, or of something that is no file at all
            bare = not (call.args or call.keywords) and re.search("path|file", ast.unparse(receiver), re.IGNORECASE)
            return any("b" not in mode for mode in modes) or bool(bare)
        case ast.Name(id="TextIOWrapper") | ast.Attribute(attr="TextIOWrapper" | "write_text"):
            return True
    return False


def newline_mistakes(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Everything that would end a line elsewhere than at a line feed, or write one as something else."""
    for node in ast.walk(module):
        match node:
            case ast.Attribute(attr="splitlines"):
                yield node, "splitlines also splits at \\r, U+2028, form feeds, ...: use split('\\n')"
            case ast.Attribute(attr="read_text"):
                yield node, "read_text has universal newlines: use read_bytes, or open(..., newline='\\n')"
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys"), attr="stdin"), attr=attribute):
                if attribute not in STDIN_ATTRIBUTES:
                    yield node, "sys.stdin has universal newlines: use sys.stdin.buffer"
            case ast.For(iter=ast.Attribute(value=ast.Name(id="sys"), attr="stdin")):
                yield node, "sys.stdin has universal newlines: use sys.stdin.buffer"
            case ast.Call() if text_mode(node):
                missing = [name for name in ("encoding", "newline") if keyword(node, name) is None]
                if missing:
                    yield node, f"text opened without {' and '.join(missing)}"


def test_lines_end_at_line_feeds_only() -> None:
    def mistakes() -> Iterator[str]:
        for path in python_files("sparsenmt", "benchmarks"):
            for node, message in newline_mistakes(tree(path)):
                yield f"{place(path, node)}: {message}"

    assert_none(mistakes(), "a line ends at \\n and nowhere else")


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("text.splitlines()", 1),
        ("path.read_text(encoding='utf-8')", 1),
        ("open(path)", 1),
        ("open(path, encoding='utf-8', newline='\\n')", 0),
        ("open(path, 'w', encoding='utf-8')", 1),
        ("open(path, 'rb')", 0),
        ("path.open()", 1),
        ("path.open('a', encoding='utf-8', newline='\\n')", 0),
        ("path.open('wb')", 0),
        ("PreparedData.open(directory)", 0),
        ("use.open()", 0),
        ("gzip.open(path)", 0),
        ("gzip.open(path, 'rt', encoding='utf-8')", 1),
        ("path.write_text(text, encoding='utf-8')", 1),
        ("path.write_text(text, encoding='utf-8', newline='\\n')", 0),
        ("sys.stdin.read()", 1),
        ("sys.stdin.buffer.read()", 0),
        ("for line in sys.stdin: pass", 1),
    ],
)
def test_newline_mistakes_are_found(code: str, count: int) -> None:
    assert len(list(newline_mistakes(ast.parse(code)))) == count
