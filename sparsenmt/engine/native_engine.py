"""The engine of compiled kernels for the CPU; what no kernel computes goes through PyTorch's operators.

Shapes: B sentences, J hypotheses a sentence that are still open, D model dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from sparsenmt.engine.contract import Continuations, Engine, GreedyOutputs, GreedyRules, NextRules, Searches
from sparsenmt.engine.native_decoder import NativeDecoder
from sparsenmt.engine.native_encoder import NativeEncoder
from sparsenmt.engine.packing import PackedTables, Packing
from sparsenmt.engine.products import CompiledProduct, can_hold_table, packed_product
from sparsenmt.engine.search_cache import Product, SearchCache
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.embeddings import Positions
from sparsenmt.model.transformer import Transformer
from sparsenmt.native.greedy import Embedding
from sparsenmt.native.kernels import MOST_IN_ORDER, Kernels
from sparsenmt.native.packing import RowTable, has_whole_rows
from sparsenmt.process.runtime import trim_heap


class NativeEngine(TorchEngine):
    """An engine of compiled kernels; implements `contract.Engine`.

    Args:
        model: with parameters in fp32 on the CPU; its parts are replaced by packed ones.
        found: the kernels.
        rounded: the dtype that the weights of products are rounded to; None: they are not rounded.
        final: keep every weight once, also where the output table is looked up.
    """

    kernels: Kernels

    def __init__(self, model: Transformer, found: Kernels, rounded: torch.dtype | None, *, final: bool = False) -> None:
        how = Packing(found, rounded)
        if NativeEncoder.knows(model.encoder, how, found):
            model.encoder = NativeEncoder(model.encoder, how, found)
        else:
            how.blocks(model.encoder.layers)
        if NativeDecoder.knows(model.decoder, how, found):
            model.decoder = NativeDecoder(model.decoder, how, found)
        else:
            how.blocks(model.decoder.layers)
        if final:
            trim_heap()  # before the largest matrix is packed
        self.kernels, self._rounded = found, rounded
        table, bias = model.output_table.detach(), model.output_bias
        self._bias = None if bias is None else bias.detach()
        dtype, one_copy = rounded or torch.float32, final and rounded is None and can_hold_table(found, table)
        self._size, self._whole_rows = table.shape, has_whole_rows(table, dtype)
        compiled = rounded is not None or one_copy or self._continues(*table.shape)
        product = self._compiled(table, self._bias) if compiled else packed_product(table, self._bias)
        if one_copy and isinstance(product, CompiledProduct):
            del table
            model.embeddings = PackedTables(model.embeddings, model.table_keys[2], product.packed)
        if final:
            trim_heap()
        super().__init__(model, product)

    @property
    def searches(self) -> Searches:
        decoder, whole = self.model.decoder, self._whole_decoder is not None
        compiled = isinstance(decoder, NativeDecoder) and not decoder.is_recurrent  # those are searched in one call
        side_by_side = compiled and not self.model.observed and torch.get_num_threads() > 1
        return Searches(2 if side_by_side else 1, whole)

    def next_tokens(
        self, states: Tensor, scores: Tensor, cache: SearchCache, rules: NextRules, width: int
    ) -> Continuations:
        single = states.dtype == scores.dtype == torch.float32
        if rules.never is not None and rules.pick is None and single and width <= MOST_IN_ORDER:
            found = self._without_logits(states, scores, cache, rules.never, width)
            if found is not None:
                return found
        return super().next_tokens(states, scores, cache, rules, width)

    def search(self, cache: SearchCache, limits: Tensor, rules: GreedyRules) -> GreedyOutputs:
        model, decoder, lists = self.model, self._whole_decoder, cache.lists
        output = None if decoder is None or lists is None else self._listed
        if decoder is None or lists is None or output is None or not decoder.takes_search(cache.kept, cache.exits[0]):
            return super().search(cache, limits, rules)
        positions = model.positions["target"]
        assert isinstance(positions, Positions)
        table: Tensor = model.embeddings[model.table_keys[1]]
        if not table.numel():  # it lies in the packed matrix only: in fp32 the listed rows are the table itself
            table = output.rows
        encodings = positions(0, int(limits.max()), table)
        embedding = Embedding(
            table.detach(), encodings if encodings.dim() else None, self._size[1] ** 0.5 if model.scaled else 1.0
        )
        ours = rules.begin, rules.end, rules.never
        return GreedyOutputs(*decoder.greedy(cache.kept, cache.exits[0], embedding, (output, lists), limits, ours))

    def _without_logits(
        self, states: Tensor, scores: Tensor, cache: SearchCache, never: Sequence[int], width: int
    ) -> Continuations | None:
        """`next_tokens` by a kernel that reads the output table; None: logits are faster or needed."""
        found, output, mask, gathered = self.kernels, self._output, None, None
        if cache.lists is not None:
            if self._listed is not None:
                rows, own = states.contiguous(), scores.contiguous()
                return found.next_listed(rows, self._listed, cache.lists, own, never, width)
            gathered = self._gathered(cache, states)
            assert gathered is not None
            output, mask = gathered.product, gathered.mask.contiguous()
        if not isinstance(output, CompiledProduct) or not output.continues or width > output.packed.outer:
            return None
        best = found.next(states.contiguous(), output.packed, scores.contiguous(), never, width, mask)
        return best if gathered is None else (*best[:2], gathered.tokens[best[2]])

    def _compiled(self, weight: Tensor, bias: Tensor | None) -> CompiledProduct:
        """Make the compiled product with rows (U or V, D) of the output table and their biases."""
        return CompiledProduct(self.kernels, weight, bias, self._rounded or torch.float32, output=True)

    def _product_of(self, tokens: Tensor) -> Product:
        if self._rounded is None and not self._continues(len(tokens), self._size[1]):
            return super()._product_of(tokens)
        return self._compiled(self._table_rows(tokens), self._bias_of(tokens))

    @cached_property
    def _listed(self) -> RowTable | None:
        """The output table in rows, for searches with shortlists, made when first needed; None: not faster."""
        table = self.model.output_table.detach()
        if not self._reads_lists:
            return None
        if not table.numel():
            table = self._table_rows(torch.arange(self._size[0]))
        return self.kernels.layout.row_table(table, self._bias, self._rounded or torch.float32)

    @cached_property
    def _reads_lists(self) -> bool:
        """True if a kernel that reads the rows of each shortlist is faster than logits of the gathered rows of all."""
        found, dtype = self.kernels, self._rounded or torch.float32
        known = self._whole_rows and dtype in found.layout.dtypes
        return known and found.faster("next listed tokens", dtype, self._size[1])

    def _continues(self, size: int, inner: int) -> bool:
        """Return True if `Kernels.next` is faster than logits for a table (``size``, ``inner``) in fp32."""
        return self.kernels.faster("next tokens", torch.float32, size, inner)

    @cached_property
    def _whole_decoder(self) -> NativeDecoder | None:
        """The decoder, if it computes greedy searches with shortlists in one call; otherwise None."""
        decoder = self.model.decoder
        if not isinstance(decoder, NativeDecoder) or not decoder.is_recurrent:
            return None
        return decoder if "target" not in self.model.embedding_norm and self._reads_lists else None


def kernels_in_use(engine: Engine) -> str:
    """Return in words what computes a model: compiled kernels, those of whole stacks by name, or PyTorch."""
    if not isinstance(engine, NativeEngine):
        return "PyTorch"
    stacks = {"encoder": isinstance(engine.model.encoder, NativeEncoder)}
    stacks |= {"decoder": isinstance(engine.model.decoder, NativeDecoder)}
    whole = [name for name, compiled in stacks.items() if compiled]
    return f"compiled {' and '.join(whole)}" if whole else "PyTorch, compiled products"
