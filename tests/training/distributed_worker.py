"""What every process of `test_distribution` runs: a training run, whose weights the first process writes.

Arguments: data directory, model directory, batch tokens, accumulated tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from sparsenmt.data.store import Dataset
from sparsenmt.training.distribution import Workers
from tests.training.support import EXITS, make_trainer, small_model, training_options


def main() -> None:
    torch.set_num_threads(1)
    data, directory, batch_tokens, accumulate_tokens = sys.argv[1:]
    workers = Workers.join(torch.device("cpu"))
    options = training_options(
        batch_tokens=int(batch_tokens), accumulate_tokens=int(accumulate_tokens), max_epochs=2, max_updates=999
    )
    model = small_model(plan=EXITS)
    trainer = make_trainer(Path(directory), Dataset(Path(data)), options, model=model, workers=workers)
    trainer.run()
    if workers.leads:
        save_file(trainer.weights.state(), Path(directory) / "result.safetensors")
    workers.wait()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
