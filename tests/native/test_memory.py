"""Without enough memory a kernel raises MemoryError: an exception of C++ would end the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.native.libraries import decoding_kernels, simplex_kernel, training_kernels

# Every case runs in a child of one process: importing PyTorch takes longer than all of them.
LIMITED = """
import os
import resource
import torch
from sparsenmt.native.encoder import EncoderStack, PackedEncoderLayer
from sparsenmt.native.gradients import HiddenKeys
from sparsenmt.native.packing import row_table
from sparsenmt.native.steps import LayerCache
from sparsenmt.native.token_lists import TokenLists
from tests.native.libraries import decoding_kernels, simplex_kernel, training_kernels
from tests.native.test_addresses import a_layer, a_stack
from tests.native.test_memory import CASES

torch.set_num_threads(1)  # a thread that cannot be started ends the process, whatever the kernels do

def limit(more):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

for name, (prepare, call, more) in CASES.items():
    child = os.fork()
    if child == 0:
        exec(prepare)
        limit(more)
        try:
            exec(call)
        except MemoryError as error:
            os.write(1, f"{name}: MemoryError: {error}\\n".encode())
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(1, f"{name}: ended with {status}\\n".encode())
"""
CASES = {
    "best tokens": (
        "found = decoding_kernels(torch.float32); x, scores = torch.zeros(200000, 64), torch.zeros(50000, 4);"
        "packed = found.layout.pack(torch.zeros(2000, 64), None, torch.float32)",
        "found.next(x, packed, scores, (0,), 2)",
        40 << 20,
    ),
    "few queries": (
        "found = decoding_kernels(torch.float32); q, k = torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 4000000, 16)",
        "found.attend(q, k, k)",
        1 << 20,
    ),
    "many queries": (
        "found = decoding_kernels(torch.float32); q = torch.zeros(1, 1, 60000, 64)",
        "found.attend(q, q, q)",
        24 << 20,
    ),
    "tokens of lists": (
        "found = decoding_kernels(torch.float32); table = row_table(torch.zeros(1000000, 16), None, torch.float32);"
        "lists = TokenLists.of(torch.ones(1, 1000000, dtype=torch.bool));"
        "x, scores = torch.zeros(4, 16), torch.zeros(1, 4)",
        "found.next_listed(x, table, lists, scores, (0,), 2)",
        4 << 20,
    ),
    "a step": (
        "stack = a_stack(); own, memory = torch.zeros(3, 2, 2, 16), torch.zeros(2, 2, 500000, 16);"
        "cache = LayerCache(own, own, memory, memory, None, None); slots = torch.zeros(2, 3, dtype=torch.int32)",
        "stack.run(torch.zeros(2, 32), [cache], slots, 1)",
        4 << 20,
    ),
    "an encoder": (
        "layer, found = a_layer(), decoding_kernels(torch.float32);"
        "matrices = tuple(layer.matrices[i] for i in (0, 1, 4, 5));"
        "layers = [PackedEncoderLayer(matrices, layer.norms[:2])]; x = torch.zeros(1, 60000, 32);"
        "stack = EncoderStack(found.layers, layers, heads=2, pre_norm=True, epsilon=1e-5)",
        "stack.run(x, torch.tensor([60000]), 1, 1)",
        16 << 20,
    ),
    "loss": (
        "found = training_kernels(); x, target = torch.zeros(2, 8000000), torch.zeros(2, dtype=torch.long)",
        "found.loss(x, target, 0.9)",
        4 << 20,
    ),
    "attention": (
        "found = training_kernels(); q = torch.zeros(1, 1, 3000, 16)",
        "found.attend(q, q, q, HiddenKeys())",
        8 << 20,
    ),
    "entmax": (
        "found = simplex_kernel(); x, alphas = torch.zeros(1, 1, 1, 4000000), torch.full((1,), 1.5)",
        "found.forward(x, None, None, alphas)",
        24 << 20,
    ),
}


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What the processes said, a line each time."""
    for load in (decoding_kernels, simplex_kernel, training_kernels):
        load()  # built before the limit
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_without_memory(said: list[str], name: str) -> None:
    lines = [line for line in said if line.startswith(f"{name}: ")]
    problem = "MemoryError: compiled code has not enough memory for its intermediate results"
    assert lines == [f"{name}: {problem}", f"{name}: ended with 0"], said
