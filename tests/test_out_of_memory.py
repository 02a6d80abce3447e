"""What counts as too little memory."""

from __future__ import annotations

import errno

import pytest
import torch

from sparsenmt.errors import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_too_little_memory(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_what_pytorch_raises_here() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()],
)
def test_other_errors(error: BaseException) -> None:
    assert not is_out_of_memory(error)
