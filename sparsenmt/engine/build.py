"""The making of an engine from a trained model, and the data types that it can have."""

from __future__ import annotations

import torch

from sparsenmt.engine.contract import Engine
from sparsenmt.engine.graph_engine import GraphEngine, wanted
from sparsenmt.engine.native_engine import NativeEngine
from sparsenmt.engine.packing import Packing
from sparsenmt.engine.products import fastest, packed_product, rounds
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.layers import FeedForward
from sparsenmt.model.sockets import WIDE
from sparsenmt.model.transformer import Transformer
from sparsenmt.native.kernels import kernels_for


def build(model: Transformer, dtype: torch.dtype = torch.float32, *, final: bool = False) -> Engine:
    """Make the engine of a model for inference: everything is decided here, once.

    Where a CPU can round the inputs of matrix products, bf16 and int8 are dtypes of the products only, and all else
    stays in fp32. Otherwise bf16 or fp16 is the dtype of everything except methods' parameters.

    Args:
        model: its parts are replaced by packed ones: it can be observed, but neither trained nor saved afterwards.
        final: keep every weight once, also where the output table is looked up.
    """
    model.eval().requires_grad_(False)
    rounded = dtype if rounds(model.output_table, dtype) else None  # then only products are rounded
    keep = {id(p) for m in model.modules() if isinstance(m, WIDE) for p in m.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in keep:  # methods compute in fp32: their parameters stay
            parameter.data = parameter.data.to(torch.float32 if rounded else dtype)
    found = kernels_for(model.output_table)
    if found is not None and model.output_table.dtype == torch.float32:
        return NativeEngine(model, found, rounded, final=final)
    return packed(model)


def packed(model: Transformer) -> TorchEngine:
    """Make the engine of PyTorch's operators, with packed weights; the model's parts are replaced, as in `build`."""
    how = Packing()
    how.blocks(model.encoder.layers)
    how.blocks(model.decoder.layers)
    kind = GraphEngine if wanted(model.output_table.device) else TorchEngine
    return kind(model, packed_product(model.output_table, model.output_bias))


def packs(model: Transformer, dtype: torch.dtype) -> bool:
    """Return True if decoding in a dtype is possible here: fp16 on a GPU, int8 if there are such products."""
    if dtype == torch.float16:
        return model.output_table.device.type == "cuda"
    return dtype in (torch.float32, torch.float64, torch.bfloat16) or rounds(model.output_table, dtype)


def fastest_dtype(model: Transformer) -> torch.dtype:
    """Return the dtype whose products are fastest by the table of choices; fp32 unless another is clearly faster."""
    weight = next(module for module in model.decoder.modules() if isinstance(module, FeedForward)).inner.weight
    if weight.device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    return fastest(weight.detach().float(), [d for d in (torch.bfloat16, torch.int8) if rounds(weight, d)])


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}
"""Name in recipes -> data type of matrix products."""


def dtype_name(dtype: torch.dtype | None) -> str:
    """Return the name of a dtype in recipes."""
    return next((name for name, each in DTYPES.items() if each == dtype), str(dtype))


def named_dtype(model: Transformer, name: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype of that name, ``auto`` by the table of choices; UserError if the machine cannot decode in it."""
    if not isinstance(name, str):
        return name
    if name == "auto":
        return fastest_dtype(model)
    dtype = DTYPES[name]
    if not packs(model, dtype):
        needed = "compiled kernels, and a processor with AVX2 or ARM's dot products"
        raise UserError(
            f"{name} matrix products need {needed if dtype == torch.int8 else 'a GPU'}",
            where="decoding.dtype",
            hint="Give --dtype fp32, bf16 or auto; `sparsenmt doctor` shows the kernels in use.",
        )
    return dtype
