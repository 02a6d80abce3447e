"""`sparsenmt prepare` with a number of processes. A worker of ``benchmarks/several_processes.py``."""

from __future__ import annotations

import shutil
from pathlib import Path

from protocol import serve, work_from_arguments


def main() -> None:
    # As in the command: the processes that encode import this module, and need nothing of these.
    from sparsenmt.assemble.checks import load_recipe
    from sparsenmt.workflows.training.prepare import prepare

    work = work_from_arguments()
    folder = Path(work["folder"]) / f"prepared-{work['processes']}"
    recipe = load_recipe(Path(work["recipe"]), [f"data.directory={folder}"])

    def repeat() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        prepare(recipe, work["processes"])

    serve(what=f"prepare --processes {work['processes']}", units=work["pairs"], repeat=repeat)


if __name__ == "__main__":
    main()
