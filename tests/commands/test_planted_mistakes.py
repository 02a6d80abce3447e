"""Mistakes in plugins: each is one message that names the method (or metric, report, ...), the place and a remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.commands.support import Plugin, Run

HEAD = """\
import torch
from sparsenmt import register, register_command, register_metric, register_report, register_strategy
from sparsenmt.model.sockets import Gates, MemoryFilter, Recurrence, ScoreTerm, Span, Transform
from sparsenmt.sparsity.registry import Options
"""
SITE = "model.attention.encoder_self"


@dataclass(frozen=True)
class Mistake:
    """A mistake.

    Args:
        code: of the module, below its imports.
        told: pattern of the message, behind the place.
        place: pattern of the place; ``LINE`` stands for the line of the code that has the comment ``# here``.
        hint: a part of the remedy.
        overrides: of the recipe; the command is ``train``.
        command: another command.
        updates: of the training.
    """

    code: str
    told: str
    place: str
    hint: str = "Correct the method"
    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    updates: int = 2


def transform(result: str, told: str, *, site: str = "encoder_self", place: str = "", start: str = "pass") -> Mistake:
    """A mistake in what a transform returns; ``weights`` are those of a right softmax."""
    code = f"""
    @register("transform", "odd")
    class Odd(Transform):
        def __init__(self, options, *, site, heads):
            super().__init__()
            {start}

        def forward(self, scores, keys):
            visible = keys.visible()
            weights = scores.masked_fill(~visible, -1e30).softmax(-1).masked_fill(~visible, 0.0)
            {result}
    """
    key = f"model.attention.{site}.transform"
    return Mistake(
        code,
        f"the transform method 'odd' {told}",
        place or f"FILE, {key}, layer 1",
        overrides=(f"{key}={{name: odd}}",),
    )


def memory(body: str, told: str, **more: str) -> Mistake:
    """A mistake in what a memory filter returns; ``right`` are its gates."""
    code = f"""
    @register("memory", "odd")
    class Odd(MemoryFilter):
        def __init__(self, options, *, dimension):
            super().__init__()

        def forward(self, memory):
            right = torch.ones_like(memory.states[..., 0])
            {body}
    """
    overrides = ("model.memory=[{name: odd}]", "losses={openness: {weight: 1}}" if "openness" in body else "losses={}")
    return Mistake(code, f"the memory method 'odd' {told}", r"FILE, model\.memory\.0", overrides=overrides)


def at_site(socket: str, base: str, body: str, told: str, *, key: str = "", layer: str = ", layer 1") -> Mistake:
    """A mistake of a method of the encoder's self-attention."""
    code = f"""
    @register("{socket}", "odd")
    class Odd({base}):
        def __init__(self, options, **context):
            super().__init__()

{indent(dedent(body), " " * 8)}
    """
    key = key or f"{SITE}.{socket}"
    where = f"FILE, {re.escape(key)}{layer}"
    return Mistake(code, f"the {socket} method 'odd' {told}", where, overrides=(f"{key}={{name: odd}}",))


def at_import(code: str, told: str, *, place: str = "FILE:LINE", hint: str = "Correct the module") -> Mistake:
    """A mistake that shows when the module is imported."""
    told = f"A plugin that may have it could not be loaded: .*{place}: the plugin SPARSENMT_PLUGINS=odd_plugin_0 {told}"
    return Mistake(code, told, "", hint, (f"{SITE}.transform={{name: odd}}",))


DECODE = ("decode", "model", "-i", "corpus/test.en", "--method", "odd")
SCORE = ("score", "corpus/test.de", "-r", "corpus/test.de", "-m", "odd")
MISTAKES = {
    "build without a keyword": Mistake(
        '@register("transform", "odd")\ndef build(options, heads):\n    return None',
        r"the transform method 'odd' failed: TypeError: build\(\) got an unexpected keyword argument 'site'",
        "FILE, model.attention.encoder_self.transform, layer 1",
        r"It is built as build\(options, site: str, heads: int\) -> Transform",
        (f"{SITE}.transform={{name: odd}}",),
    ),
    "build without a result": Mistake(
        '@register("transform", "odd")\ndef build(options, *, site, heads):\n    Transform()',
        "the transform method 'odd' failed: TypeError: it builds None",
        "FILE, model.attention.cross.transform, layer 1",
        "It is built as build",
        ("model.attention.cross.transform={name: odd}",),
    ),
    "build of another class": Mistake(
        '@register("depth", "odd")\ndef build(options, *, encoder_layers, decoder_layers):\n    return [1, 2]',
        "the depth method 'odd' failed: TypeError: it builds list, which is no DepthPlan",
        "FILE, model.depth",
        "-> DepthPlan",
        ("model.depth={name: odd}",),
    ),
    "an error in the constructor": transform(
        "return weights",
        "failed: ZeroDivisionError: division by zero",
        start="self.share = 1 / 0  # here",
        place="FILE:LINE, model.attention.encoder_self.transform, layer 1",
    ),
    "an error at run time": transform(
        "return weights[1000]  # here",
        "failed: IndexError: index 1000 is out of bounds",
        place="FILE:LINE, model.attention.encoder_self.transform, layer 1",
    ),
    "shape of weights": transform(
        "return weights[..., :1]", r"returns torch.float32 \(.*, 1\) in place of a floating-point tensor \("
    ),
    "type of weights": transform(
        "return weights > 0.5", r"returns torch.bool \(.*\) in place of a floating-point tensor"
    ),
    "no weights": transform("pass", "returns NoneType in place of a floating-point tensor"),
    "NaN": transform("return weights * float('nan')", "returns numbers or gradients that are not finite, of finite"),
    "NaN in training": transform(
        "return weights * (float('nan') if self.training else 1)", "returns numbers or gradients that are not finite"
    ),
    "NaN after some updates": replace(
        transform(
            "self.calls += self.training\n            return weights * (float('nan') if self.calls > 6 else 1)",
            "returns numbers or gradients that are not finite",
            start="self.calls = 0",
        ),
        updates=12,
    ),
    "NaN of gradients": transform(
        "return weights + (weights - weights).sqrt()", "returns numbers or gradients that are not finite"
    ),
    "a mask that is ignored": transform(
        "return scores.softmax(-1)", "gives weight to keys that are hidden", site="encoder_self"
    ),
    "the future": transform("return scores.softmax(-1)", "gives weight to keys that are hidden", site="decoder_self"),
    "a bias of scores": at_site(
        "transform",
        "Transform",
        """
        def score_bias(self, keys):
            return torch.zeros(3, 1, 1, 7)
        """,
        r"returns torch.float32 \(3, 1, 1, 7\), which cannot be broadcast to \(",
    ),
    "gates outside [0, 1]": memory("return Gates(right * 1.7)", r"gives gates outside of \[0, 1\], such as 1.7"),
    "gates of another shape": memory("return Gates(right[:, :1])", r"returns torch.float32 \(.*, 1\) in place of"),
    "a tensor in place of gates": memory("return right", "returns Tensor in place of Gates"),
    "a scalar loss": memory(
        "return Gates(right, losses={'openness': right.mean()})",
        r"gives the loss 'openness' as torch.float32 \(\) in place of .* \(\d+,\): one value a sentence",
    ),
    "a pattern of numbers": at_site(
        "pattern",
        "object",
        """
        reach = None

        def __call__(self, queries, positions, visible):
            return visible.float()
        """,
        r"returns torch.float32 \(.*\) in place of a bool tensor",
    ),
    "a reach of one number": at_site(
        "pattern",
        "object",
        """
        reach = 3

        def __call__(self, queries, positions, visible):
            return visible
        """,
        "has the reach 3 in place of None, or the numbers of positions",
    ),
    "a span above 1": at_site(
        "span",
        "Span",
        """
        reach = 5

        def forward(self, distances):
            return 2.0 * torch.ones(2, *distances.shape)
        """,
        r"gives factors outside of \[0, 1\], such as 2",
    ),
    "a score term of another shape": at_site(
        "position",
        "ScoreTerm",
        """
        def forward(self, q, distances):
            return q.sum(-1)
        """,
        r"returns torch.float32 \(.*\) in place of a floating-point tensor \(",
    ),
    "a cell without a state": at_site(
        "recurrence",
        "Recurrence",
        """
        projections = {"input": True}

        def forward(self, projected, state):
            return projected[0]
        """,
        "returns Tensor in place of outputs and a state",
        key="model.recurrence",
    ),
    "fixed heads of another shape": at_site(
        "heads",
        "object",
        """
        heads = 1
        names = ("first",)

        def __call__(self, values, keys):
            return values[:, :, :1]

        def weights(self, keys):
            return torch.ones(len(keys.valid), 1, keys.queries.shape[1], keys.valid.shape[1])
        """,
        r"returns torch.float32 \(.*, 1, .*\) in place of a floating-point tensor",
        key=f"{SITE}.heads.given",
        layer="",
    ),
    "a syntax error": at_import("def f(:  # here", "failed: SyntaxError"),
    "an error of the module": at_import("1 / 0  # here", "failed: ZeroDivisionError: division by zero"),
    "a package that is not installed": at_import(
        "import no_such_package  # here", "cannot be loaded: there is no module 'no_such_package'", hint="PYTHONPATH"
    ),
    "the name of a built-in method": at_import(
        '@register("transform", "softmax")  # here\nclass Odd(Transform):\n    pass',
        "failed: ValueError: the transform method 'softmax' is registered already, by this program: choose another",
    ),
    "a name for two classes": at_import(
        '@register("transform", "odd2")\nclass Odd(Transform):\n    pass\n\n\n'
        '@register("transform", "odd2")  # here\nclass Even(Transform):\n    pass',
        r"failed: ValueError: the transform method 'odd2' is registered already, by odd_plugin_0 \(FILE\): choose",
    ),
    "a socket that is not there": at_import(
        '@register("hats", "odd")  # here\nclass Odd(Transform):\n    pass',
        "failed: ValueError: no socket 'hats': there",
    ),
    "an example that does not fit": at_import(
        '@register("transform", "odd", examples=({"k": 3},))  # here\nclass Odd(Transform):\n    pass',
        "failed: ValueError: the transform method 'odd': the example {'k': 3} does not fit its options",
    ),
    "a strategy without a search": Mistake(
        'from sparsenmt.decoding.strategies import Strategy\n@register_strategy("odd")\nclass Odd(Strategy):\n    pass',
        "the decoding strategy 'odd' is no class derived from .*Strategy, with a method `search`",
        "odd_plugin_0:Odd",
        "write its `search`",
        command=DECODE,
    ),
    "a strategy without results": Mistake(
        """
    from sparsenmt.decoding.strategies import Strategy

    @register_strategy("odd")
    class Odd(Strategy):
        def search(self, engine, batches, naming):
            for batch in batches:
                yield {}
    """,
        "the decoding strategy 'odd' does not give results of every sentence once",
        "odd_plugin_0:Odd",
        "Correct its `search`",
        command=DECODE,
    ),
    "a metric that is no number": Mistake(
        """
    @register_metric("odd")
    class Odd:
        def __init__(self, name, settings):
            pass

        def corpus(self, hypotheses, references):
            return "good", "signature"

        def statistics(self, hypotheses, references):
            return None

        def value(self, sums):
            return 0.0
    """,
        r"the metric 'odd' returns \('good', 'signature'\) of a corpus, in place of a finite number and a text",
        "FILE",
        "sparsenmt.evaluation.scorer.Scorer",
        command=SCORE,
    ),
    "a report without a result": Mistake(
        '@register_report("odd", "Odd things.")\ndef odd(session):\n    """Odd."""',
        "the report 'odd' returns NoneType in place of an AnalysisResult",
        "the plugin odd_plugin_0",
        r"Return session.result\(report, draw\)",
        command=("analyze", "odd", "model", "-i", "corpus/test.en"),
    ),
    "a command that is none of click": Mistake(
        '@register_command("odd", "Do odd things.")\ndef odd():\n    """Odd."""',
        "the command 'odd' is no command of click",
        "the plugin odd_plugin_0",
        r"Write @click.command\(\) below",
        command=("odd",),
    ),
    "an error of a command": Mistake(
        'import click\n@register_command("odd", "Do odd things.")\n@click.command()\ndef odd():\n    1 / 0  # here',
        "the command 'odd' failed: ZeroDivisionError",
        "FILE:LINE",
        "Correct the plugin",
        command=("odd",),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message(name: str, plugin: Plugin, command: Run, workspace: Path) -> None:
    mistake = MISTAKES[name]
    content = HEAD + dedent(mistake.code)
    module = plugin(content)
    lines = [number for number, line in enumerate(content.split("\n"), start=1) if "# here" in line]

    def placed(pattern: str) -> str:
        file = rf"\S*{module}\.py"
        return pattern.replace("FILE", file).replace("LINE", str(lines[0]) if lines else "LINE")

    overrides = (f"training.max_updates={mistake.updates}", "directory=odd-model", *mistake.overrides)
    result = command(*(mistake.command or ("train", "small.yaml", *overrides)))
    assert result.code == 2, result.err
    assert "Traceback" not in result.err and result.err.count("error: ") == 1, result.err
    assert "learning_rate" not in result.err and not list(workspace.glob("sparsenmt-error-*"))
    told = placed(mistake.told) if not mistake.place else f"{placed(mistake.place)}: {placed(mistake.told)}"
    assert re.search(told, result.err), result.err
    assert re.search(mistake.hint, result.err), result.err
