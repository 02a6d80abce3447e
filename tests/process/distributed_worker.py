"""What every process of `tests/process/test_workers.py` runs: a training run, whose weights the first process writes.

It goes on from the newest checkpoint, if there is one.

Arguments: data directory, model directory, batch tokens, accumulated tokens, share of dropout, and which process is
stopped before which of its batches, and how (RANK:BATCH:HOW; 0:0:TERM for never): TERM and KILL are signals to itself,
DISK a full disk.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sparsenmt.data.dataset import Dataset
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.process.workers import Workers
from sparsenmt.training import sentence_pairs
from sparsenmt.training.checkpoints import find_checkpoints
from tests.training.support import EXITS, make_trainer, small_model, training_options


def main() -> None:
    torch.set_num_threads(1)
    data, directory, batch_tokens, accumulate_tokens, dropout, stop = sys.argv[1:]
    workers = Workers.join(torch.device("cpu"))
    options = training_options(
        batch_tokens=int(batch_tokens),
        accumulate_tokens=int(accumulate_tokens),
        max_epochs=2,
        max_updates=999,
        save_every=4,
    )
    model = small_model(plan=EXITS, dropout=float(dropout))
    found = find_checkpoints(Path(directory))
    torch.manual_seed(5 + workers.rank + 10 * len(found))
    trainer = make_trainer(Path(directory), Dataset(Path(data)), options, model=model, workers=workers)
    if found:
        trainer.restore(found[-1])
    rank, batch, how = stop.split(":")
    if int(rank) == workers.rank:
        sentence_pairs.accumulate_gradients = stopped_at(int(batch), how, sentence_pairs.accumulate_gradients)  # type: ignore[assignment]
    try:
        trainer.run()
    except UserError as error:
        sys.exit(f"{error}; resumable: {error.resumable}")
    except Interrupted:
        print(f"rank {workers.rank} stopped after update {trainer.progress.update}", flush=True)
    else:
        if workers.is_main_process:
            save_file(trainer.weights.state(), Path(directory) / "result.safetensors")
    workers.barrier()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def stopped_at(batch: int, how: str, accumulate: Callable[..., Any]) -> Callable[..., Any]:
    """Counts batches, and stops the process before one of them."""
    done = 0

    def call(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == batch:
            if how == "DISK":
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            else:
                os.kill(os.getpid(), signal.Signals[f"SIG{how}"])
        return accumulate(*arguments)

    return call


if __name__ == "__main__":
    main()
