"""The rules that a method must keep, in one table: name, one sentence, and the function that tries it on a case."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sparsenmt.errors import UserError
from sparsenmt.model.sockets import ContentPattern
from sparsenmt.testing import checks, properties
from sparsenmt.testing.bench import Bench, attention_steps, build, build_with, is_refused
from sparsenmt.testing.cases import Case, Norm, Plug, Sizes, fits_language_model
from sparsenmt.testing.checks import BrokenRule
from sparsenmt.testing.device import check_device
from sparsenmt.testing.forced_gates import check_forced_gates
from sparsenmt.testing.language_models import check_segments

Check = Callable[[Bench], None]
_KIT = f"{Path(__file__).parent}{os.sep}"
READERS = ("cross.transform", "encoder_self.transform")
"""The places of transforms whose keys a memory filter may drop."""


def _always(bench: Bench) -> bool:
    return True


def _decodes(bench: Bench) -> bool:
    found = [step.content for _, step in attention_steps(bench.model) if step.causal]
    return all(not isinstance(each, ContentPattern) or each.decodes for each in found)


def _has(*sockets: str) -> Callable[[Bench], bool]:
    return lambda bench: bench.case.has_socket(*sockets)


def _reads_memory(bench: Bench) -> bool:
    return any(bench.case.has(place) for place in READERS) and not bench.case.has_socket("memory")


@dataclass(frozen=True)
class Rule:
    """A rule of methods.

    Args:
        name: a word, for reports and options.
        sentence: what holds where it is kept.
        checks: each raises `BrokenRule` where it does not hold.
        applies: False: the case says nothing about the rule.
        in_pairs: True if two methods together may break it where each alone keeps it.
        gradients: True if it needs gradients.
    """

    name: str
    sentence: str
    checks: tuple[Check, ...]
    applies: Callable[[Bench], bool] = _always
    in_pairs: bool = False
    gradients: bool = False

    def check(self, bench: Bench) -> bool:
        """Try the rule on a case, which is not changed; False: it says nothing about the rule.

        Raises:
            BrokenRule: it does not hold.
        """
        if not self.applies(bench):
            return False
        with torch.set_grad_enabled(self.gradients):
            for check in self.checks:
                check(bench.copy())
        return True


BUILT = Rule(
    "build",
    "The method is built and runs wherever it does not declare, in `refuses`, that it has no meaning.",
    (),
    in_pairs=True,
)
"""The rule that `build_or_refuse` keeps."""

RULES: tuple[Rule, ...] = (
    BUILT,
    Rule(
        "deterministic",
        "In evaluation the same sentences give the same bits, whatever the random numbers are.",
        (properties.check_deterministic,),
    ),
    Rule(
        "state",
        "Nothing is kept between sentences: A, B and A give what A and B give alone.",
        (properties.check_state,),
    ),
    Rule("float64", "Where float64 comes in, nothing is rounded to fp32.", (properties.check_double_precision,)),
    Rule(
        "reach",
        "A pattern shows no key beyond its `reach`: attention in bands gives what a mask gives.",
        (checks.check_bands,),
        applies=_has("pattern", "position", "span"),
        in_pairs=True,
    ),
    Rule(
        "fused",
        "A transform with a `score_bias` is the softmax of the scores with this bias.",
        (checks.check_fused,),
        applies=_has("transform", "pattern"),
        in_pairs=True,
    ),
    Rule(
        "empty",
        "A query that sees no key has weights of exactly 0, and finite gradients.",
        (properties.check_empty_rows,),
        applies=_has("transform"),
    ),
    Rule(
        "counts",
        "A key that stands for c keys has the weight of c equal keys, also in front of filters that drop positions.",
        (properties.check_counts, check_forced_gates),
        applies=_reads_memory,
    ),
    Rule(
        "compaction",
        "Dropped positions may be removed: outputs, losses and gates are the same, and no more is read than was kept.",
        (checks.check_compaction, checks.check_keys_read),
        in_pairs=True,
    ),
    Rule("padding", "Nothing depends on the tokens at padded positions.", (properties.check_padding,)),
    Rule(
        "batch",
        "A sentence alone gives what it gives in a batch, and a hypothesis alone what it gives among others.",
        (checks.check_alone,),
        in_pairs=True,
    ),
    Rule("future", "No state depends on later target tokens.", (properties.check_future,), applies=_decodes),
    Rule(
        "positions",
        "Queries and keys are found by their positions: queries alone, and one more hidden key, change nothing.",
        (properties.check_positions,),
        applies=_has("pattern", "transform", "position", "span", "heads"),
    ),
    Rule(
        "weights",
        "The weights that observers see give the outputs, lie on visible keys, and sum to 1 unless the transform "
        "declares `normalised = False`.",
        (checks.check_listening,),
        in_pairs=True,
    ),
    Rule(
        "steps",
        "Decoding step by step gives what decoding at once gives.",
        (checks.check_steps, checks.check_truncation),
        applies=_decodes,
        in_pairs=True,
    ),
    Rule(
        "gradients",
        "Gradients are the slopes of the outputs, also of compacted ones, and reach every parameter.",
        (properties.check_slopes,),
        gradients=True,
    ),
    Rule("fp32", "In fp32 the rules `steps` and `compaction` hold to 2e-4.", (checks.check_single_precision,)),
    Rule(
        "engines",
        "Both engines of decoding compute the same function in fp32, and finite states in bf16.",
        (checks.check_packed,),
        applies=_decodes,
    ),
    Rule(
        "device",
        "On a (fake) GPU all tensors are made there, and the processor seldom waits for it.",
        (check_device,),
        applies=_decodes,
        gradients=True,
    ),
    Rule(
        "segments",
        "In a language model, segments and steps give what one pass gives.",
        (check_segments,),
        applies=lambda bench: fits_language_model(bench.case) and _decodes(bench),
    ),
    Rule(
        "examples",
        "With the options in `examples` a filter drops some positions and keeps some.",
        (checks.check_filter_decides,),
        applies=_has("memory"),
    ),
)
"""All rules. Those that come first are about single properties; the others often break as well where these do."""


def rule_of(name: str) -> Rule:
    """Return the rule of that name.

    Raises:
        UserError: there is none.
    """
    found = next((rule for rule in RULES if rule.name == name), None)
    if found is None:
        raise UserError(
            f"there is no rule '{name}'", where="rule", hint=f"Rules: {', '.join(rule.name for rule in RULES)}."
        )
    return found


def build_or_refuse(case: Case) -> Bench | None:
    """Build a case; None if it is refused, as a method declares.

    Raises:
        BrokenRule: it is refused without a declaration.
    """
    try:
        first = build_with(case, case.seed)
    except UserError as error:
        if is_refused(case):
            return None
        plugs = ", ".join(map(str, case.plugs))
        raise BrokenRule(f"refused, but no method of {plugs} declares it in `refuses`: {error}") from error
    return build(case, first)


def run_case(case: Case) -> tuple[Bench | None, str | None]:
    """Build a case, and run it once.

    Returns:
        the case, None where it is refused or does not run; and why it does not keep the rule `BUILT`, None: it does.
    """
    try:
        bench = build_or_refuse(case)
        if bench is not None:
            with torch.no_grad():
                bench.outputs()
        return bench, None
    except (BrokenRule, UserError) as error:
        return None, str(error)
    except Exception as error:
        return None, describe(error)


def broken(rule: Rule, bench: Bench) -> tuple[bool, str | None]:
    """Try a rule on a case.

    Returns:
        if the case says anything about the rule, and why it does not hold; None: it holds.
    """
    try:
        return rule.check(bench), None
    except BrokenRule as error:
        return True, str(error)
    except Exception as error:
        return True, describe(error)


def describe(error: Exception) -> str:
    """Describe an error that a method raised, with the innermost place outside of PyTorch and of the kit."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "/torch/" not in each.filename]
    own = [each for each in frames if not each.filename.startswith(_KIT)] or frames
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"


def check_rule(
    rule: str,
    plugs: Sequence[tuple[str, str, dict[str, Any]]],
    *,
    norm: Norm = "pre",
    **sizes: Any,
) -> None:
    """Try one rule on one case, as the scripts of failing cases do.

    Args:
        rule: name in `RULES`.
        plugs: place, name and options of each method, such as ``("cross.transform", "softmax", {})``.
        sizes: fields of `Sizes`.

    Raises:
        BrokenRule: the rule does not hold.
        UserError: there is no such rule, place or method.
    """
    case = Case(tuple(Plug.of(*plug) for plug in plugs), norm, Sizes(**sizes))
    bench = build_or_refuse(case)
    if bench is None:
        return
    with torch.no_grad():
        bench.outputs()
    rule_of(rule).check(bench)
