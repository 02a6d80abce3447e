"""``sparsenmt check-method``: the rules of methods, tried on those of a module."""

from __future__ import annotations

import json

import click


@click.command("check-method")
@click.argument("module", metavar="MODULE[:NAME]")
@click.option("--full", is_flag=True, help="Try every example, norm and pair; takes minutes.")
@click.option("--rule", "rules", multiple=True, metavar="RULE", help="Only this rule; repeatable.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, module: str, full: bool, rules: tuple[str, ...], as_json: bool) -> None:
    """Check that sparsity methods keep the rules of the engine.

    MODULE is the name of a Python module, or the path of its file or folder, that registers methods; NAME is one of
    them.

    Each method is tried alone, at every place where it can be plugged in and with its examples, and in pairs with the
    other methods, in small models of random weights: at once and step by step, dense and compacted, in batches and
    alone, through both engines, and on a fake GPU. Of a rule that does not hold, the smallest case that shows it is
    printed as a Python script.

    The exit code is 0 if all rules hold, and 1 if one does not.
    """
    from sparsenmt.process.progress import duration, notify, progress_bar
    from sparsenmt.testing.kit import CheckPlan
    from sparsenmt.testing.method_module import load_methods
    from sparsenmt.testing.report import lines
    from sparsenmt.testing.rules import RULES, rule_of

    chosen = tuple(rule_of(name) for name in dict.fromkeys(rules)) or RULES
    plans = [CheckPlan.of(method, full=full) for method in load_methods(module)]
    results = []
    for plan in plans:
        seconds = plan.estimate(chosen)
        cases = f"cases: {len(plan.alone)} alone, {len(plan.pairs)} in pairs; rules: {len(chosen)}"
        notify(f"{plan.method.title}: {cases}; about {duration(seconds)}")
        with progress_bar(f"checking {plan.method.name}", plan.cases, unit="case") as advance:
            results.append(plan.run(chosen, advance=advance))
        if not as_json:
            click.echo("\n".join(lines(results[-1])))
    if as_json:
        click.echo(json.dumps([result.record() for result in results], ensure_ascii=False, indent=2))
    if not all(result.holds for result in results):
        context.exit(1)
