"""Updates in one process or in several that share each update. A worker of ``benchmarks/several_processes.py``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import torch

from protocol import serve, training_batches, work_from_arguments
from sparsenmt.process.workers import Workers
from sparsenmt.training.gradient_buckets import GradientBuckets
from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients, clip_gradients
from workers.train import as_batch, set_up

CPU = torch.device("cpu")


def start_others(size: int) -> list[subprocess.Popen[bytes]]:
    """Start the other processes, as torchrun would; returns them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0"}
    command = [sys.executable, __file__, sys.argv[1]]
    return [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, "RANK": str(rank)})
        for rank in range(1, size)
    ]


def main() -> None:
    work = work_from_arguments()
    rank, size = int(os.environ.get("RANK", "0")), work["processes"]
    others = start_others(size) if size > 1 and rank == 0 else []
    workers = Workers.join(CPU)
    model, weights, optimizer = set_up(work)
    objective = Objective(work["label_smoothing"], "tokens", {}, model.plan.pairs())
    batches = [as_batch(*batch) for batch in training_batches(work)]
    together = work["batches_per_update"]
    updates = [batches[first : first + together] for first in range(0, len(batches), together)]
    buckets = GradientBuckets(weights.trained(), workers, last=[model.output_table])
    parameters = [master for _, master in weights.trained()]

    def train() -> None:
        """Do all updates as `Trainer` does."""
        for update in updates:
            own = update[rank::size]
            mine = UpdateTotals.of(own)
            sums = workers.sum([mine.target_tokens, mine.source_tokens, mine.sentences])
            totals = UpdateTotals(*(int(each) for each in sums))
            buckets.begin_update()
            loss = 0.0
            for number, batch in enumerate(own):
                buckets.begin_batch("plain", last=number == len(own) - 1)
                loss += float(accumulate_gradients(model, batch, objective, totals).loss)
                buckets.end_batch()
                weights.collect()
            late = buckets.start_rest()
            loss, any_late = workers.sum([loss, float(late)])
            buckets.finish(late=any_late > 0)
            clip_gradients(parameters, 1.0, "total")
            optimizer.step()
            optimizer.zero_grad()
            weights.publish()

    def repeat() -> None:
        workers.sum([1.0])  # tells the others to begin
        train()

    if rank > 0:
        while workers.sum([0.0])[0]:
            train()
        return
    serve(
        what=f"{size} x {work['threads']} threads, {work['our_dtype']}",
        units=sum(batch.target_tokens for batch in batches),
        repeat=repeat,
    )
    workers.sum([0.0])
    for other in others:
        other.wait(timeout=60)


if __name__ == "__main__":
    main()
