"""Mutants of the formulas of training and of the model: losses, schedules, methods, depth."""

from __future__ import annotations

from tools.mutants.mutant import mutants_of

_GRADIENTS = ("tests/training/test_gradients.py", "tests/training/test_exits.py")
_ENTMAX = "tests/sparsity/test_entmax_function.py"
_FIXED = "tests/sparsity/test_fixed_heads.py"
_PATTERNS = "tests/sparsity/test_patterns.py"
_TOPK = "tests/sparsity/test_topk.py"

FORMULAS = (
    # Losses and gradients.
    *mutants_of(
        "sparsenmt/training/loss.py",
        "tests/training/test_loss.py",
        (
            "label smoothing over all tokens but the target",
            "uniform = smoothing / size",
            "uniform = smoothing / (size - 1)",
        ),
        (
            "label smoothing in the loss but not in its gradient",
            "_solve(model, logits, wanted, 1 - smoothing, wide)",
            "_solve(model, logits, wanted, 1.0, wide)",
        ),
        (
            "label smoothing in the gradient but not in the loss",
            "losses.append((1 - smoothing) * nll + smoothing * (log_sum - mean))",
            "losses.append(nll)",
        ),
    ),
    *mutants_of(
        "sparsenmt/training/gradients.py",
        _GRADIENTS,
        (
            "sentences weigh by their lengths where they should not",
            "lengths = lengths * totals.sentences",
            "lengths = torch.full_like(lengths, totals.target_tokens)",
        ),
        (
            "auxiliary losses by sentences where they are by tokens",
            "return lengths / totals.source_tokens",
            "return torch.full_like(lengths, 1.0 / totals.sentences)",
        ),
        (
            "a closed share of sentences, not of positions",
            "weight = batch.source_valid.sum(1, dtype=torch.float64) / totals.source_tokens",
            "weight = torch.ones(len(batch.source_valid), dtype=torch.float64) / totals.sentences",
        ),
        (
            "exits with equal shares, whatever the plan",
            "weights = torch.cat([shares[m] * self.weights for m in flat])",
            "weights = (self.weights * (sum(shares.values()) / len(flat))).repeat(len(flat))",
        ),
        ("shares of drawn exits that are not scaled up", "factor *= len(exits) / len(sides[-1])", "factor *= 1.0"),
        (
            "a penalty without the share of its exit",
            "mean = (values * sentence_weights).sum() * shares[n]",
            "mean = (values * sentence_weights).sum()",
        ),
        (
            "the gradient of the deepest encoder exit only",
            "gradients.append(leaf.grad)",
            "gradients.append(leaf.grad * (n == max(shares)))",
        ),
    ),
    *mutants_of(
        "sparsenmt/model/depth_plan.py",
        "tests/training/test_exits.py",
        ("weights of exits that do not sum to 1", "pair: weight / total for", "pair: weight for"),
    ),
    *mutants_of(
        "sparsenmt/training/schedules.py",
        ("tests/training/test_schedules.py", "tests/training/test_multipliers.py"),
        (
            "a learning rate that falls with the update, not with its root",
            "peak * math.sqrt(max(warmup, 1) / update)",
            "peak * max(warmup, 1) / update",
        ),
        ("warmup from 0", "return peak * update / warmup", "return peak * (update - 1) / warmup"),
        (
            "a linear schedule that ends one update early",
            "peak * max(last + 1 - update, 0)",
            "peak * max(last - update, 0)",
        ),
        ("a ramp from update 0 wherever it begins", "max(update - value.after, 0)", "max(update, 0)"),
        ("a controller that releases as slowly as it pulls", "else loss.release * distance", "else distance"),
        ("a controller without a brake", "- loss.damping * speed", ""),
    ),
    *mutants_of(
        "sparsenmt/training/checkpoints.py",
        "tests/training/test_checkpoints.py::test_average",
        ("the sum of checkpoints for their mean", "(total / len(checkpoints))", "(total / 1)"),
        (
            "the mean of the first and the last checkpoint",
            "else sums[name] + tensor.double()",
            "else sums[name] * 0 + tensor.double()",
        ),
    ),
    *mutants_of(
        "sparsenmt/workflows/training/checkpoint_choice.py",
        "tests/workflows/training/test_checkpoint_choice.py",
        ("the worst candidate on the validation text", "taken = min(candidates", "taken = max(candidates"),
        (
            "means of the oldest checkpoints",
            "(tuple(found[-size:]) for size in sizes)",
            "(tuple(found[:size]) for size in sizes)",
        ),
        (
            "a choice without the best single checkpoint",
            "[*((present[update],) for update in best), *(tuple",
            "[*(tuple",
        ),
    ),
    # The controller's measurement: shares of gates in training.
    *mutants_of(
        "sparsenmt/model/stacks.py",
        "tests/model/test_gate_shares.py",
        (
            "samples in place of the gates of evaluation",
            "memory.on_source(gates.values if gates.evaluated is None else gates.evaluated).detach()",
            "memory.on_source(gates.values).detach()",
        ),
        (
            "gates of evaluation closed by earlier samples",
            "evaluated = evaluated.masked_fill(self.evaluated == 0, 0)",
            "evaluated = evaluated * memory.on_source(memory.open_entries())",
        ),
        (
            "masked positions that open again in evaluation",
            "self.masked = masked | (evaluated == 0)",
            "self.masked = masked",
        ),
        (
            "the closed share of what is still a key",
            "lengths = self.source.sum(1).clamp_min(1)",
            "lengths = memory.valid.sum(1).clamp_min(1)",
        ),
    ),
    *mutants_of(
        "sparsenmt/model/memory.py",
        ("tests/sparsity/test_l0drop.py", "tests/model/test_gate_shares.py", "tests/model/test_compaction.py"),
        (
            "a penalty over what is still a key",
            "positions = counts if self.source is None else self.source.to(values.dtype)",
            "positions = counts",
        ),
        (
            "a penalty without counts",
            "counts = self.valid.to(values.dtype) if self.counts is None else self.counts * self.valid",
            "counts = self.valid.to(values.dtype)",
        ),
        (
            "stand-ins that are open",
            "opened = (self.gates != 0) & (self.entries >= 0)",
            "opened = self.entries >= 0",
        ),
        ("stand-ins that are never opened again", "opened.long()) > 0", "(opened & (self.entries > 0)).long()) > 0"),
    ),
    # L0Drop, rules, and the exactness of counts.
    *mutants_of(
        "sparsenmt/sparsity/l0drop.py",
        "tests/sparsity/test_l0drop.py",
        ("a penalty over padding", "memory.source_mean(opened)", "opened.mean(1)"),
        (
            "gates that are stretched below 0 only",
            "values * (1 + 2 * EPSILON) - EPSILON",
            "values * (1 + EPSILON) - EPSILON",
        ),
        ("samples with the temperature on one term only", "(log_alpha + noise) / BETA", "log_alpha + noise / BETA"),
        (
            "an evaluation gate with the temperature",
            "return stretch(torch.sigmoid(log_alpha))",
            "return stretch(torch.sigmoid(log_alpha / BETA))",
        ),
        ("a penalty without beta", "log_alpha - BETA * math.log", "log_alpha - math.log"),
        ("a penalty with the sign of the stretch turned", "log_alpha - BETA * math.log", "log_alpha + BETA * math.log"),
    ),
    *mutants_of(
        "sparsenmt/model/compaction.py",
        ("tests/model/test_compaction.py", "tests/model/test_gate_shares.py"),
        ("zeros where positions are masked, and the reverse", 'gates.on_closed == "mask"', 'gates.on_closed == "zero"'),
        ("filters of a place that forget each other", "source_gates = source_gates * memory.gates", "pass"),
        (
            "zero vectors beside their stand-in",
            "if gates.cumulative or (memory.gated and not masking):",
            "if gates.cumulative:",
        ),
        (
            "gates that drop but do not scale",
            "factors = values.unsqueeze(-1)",
            "factors = (values != 0).unsqueeze(-1)",
        ),
        (
            "a stand-in that counts once",
            "dropped = (old * (memory.valid & ~kept)).sum(1, keepdim=True)",
            "dropped = (old * (memory.valid & ~kept)).sum(1, keepdim=True).clamp_max(1)",
        ),
        (
            "stand-ins that merge without their counts",
            "old = exact if memory.counts is None else memory.counts * exact",
            "old = exact",
        ),
    ),
    *mutants_of(
        "sparsenmt/sparsity/softmax.py",
        "tests/sparsity/test_softmax.py",
        ("a count where its log belongs", "keys.counts.clamp_min(1e-30).log()[", "keys.counts.clamp_min(1e-30)["),
    ),
    *mutants_of(
        "sparsenmt/sparsity/freq.py",
        "tests/sparsity/test_rules.py",
        ("a rule that drops one frequent word less", "features[RANK] <= self.rank", "features[RANK] < self.rank"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/inv_freq.py",
        "tests/sparsity/test_rules.py",
        ("a rule that drops the frequent words", "~self.is_frequent", "self.is_frequent"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/group.py",
        "tests/sparsity/test_rules.py",
        ("a rule that keeps the last of each group", "units % self.size != 0", "units % self.size != self.size - 1"),
    ),
    # Transforms.
    *mutants_of(
        "sparsenmt/sparsity/simplex/newton.py",
        _ENTMAX,
        (
            "1.5-entmax with the scores of sparsemax",
            "torch.add(1 - e, d, alpha=0.5, out=u)",
            "torch.add(1 - e, d, alpha=1.0, out=u)",
        ),
        (
            "1.5-entmax without the square",
            "return u.square_(), _sum(u, counts), slope",
            "return u, _sum(u, counts), slope",
        ),
        (
            "alpha-entmax with the exponent alpha - 1",
            "base, inverse = d * beta, _LOG2_E / beta",
            "base, inverse = d * beta, _LOG2_E * beta",
        ),
        ("Newton's method until 1% is missing", "if worst <= close or", "if worst <= 0.01 or"),
        (
            "mass without counts",
            "_rows_of(alpha, part), None if counts is None else counts[part]",
            "_rows_of(alpha, part), None",
        ),
        ("a gradient of 1.5-entmax with p in place of its root", "return p.sqrt(), None", "return p, None"),
        ("a gradient of sparsemax over all keys", "return p.sign(), None", "return torch.ones_like(p), None"),
        ("a gradient without counts", "slope = slope * counted", "slope = slope * 1"),
        ("a gradient of alpha that is divided by alpha - 1 once", "/ beta**2", "/ beta"),
        ("a gradient of alpha near softmax with another limit", "1 / 8, 1 / 3, 1 / 2)", "1 / 8, 1 / 3, 1 / 3)"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/simplex/newton.py",
        "tests/sparsity/test_entmax_support.py",
        (
            "weights that no normal number holds, in PyTorch",
            "torch.threshold_(p, _BELOW, 0.0)  # one pass; NaN stays",
            "pass",
        ),
    ),
    *mutants_of(
        "sparsenmt/sparsity/simplex/function.py",
        _ENTMAX,
        ("masked keys with a low score", "masked_fill(~visible, -torch.inf)", "masked_fill(~visible, -10.0)"),
        (
            "the gradient of alpha as a mean over rows",
            "view(mass.shape[:3]).sum((0, 2))",
            "view(mass.shape[:3]).mean((0, 2))",
        ),
        (
            "alphas that are those of the wrong head",
            "alpha[None, :, None].expand",
            "alpha.flip(0)[None, :, None].expand",
        ),
    ),
    *mutants_of(
        "sparsenmt/sparsity/entmax.py",
        "tests/sparsity/test_entmax.py",
        ("learned alphas from 1 to 2", "return LOW + SPAN * torch.sigmoid(logits)", "return 1 + torch.sigmoid(logits)"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/topk.py",
        _TOPK,
        (
            "a stand-in that takes one place",
            "last = (taken < k).sum",
            "last = (torch.ones_like(order).cumsum(-1) < k).sum",
        ),
        ("ties that rounding decides", "threshold - TIE_TOLERANCE * (1 + threshold.abs())", "threshold"),
        (
            "top-k without log counts",
            "bias = bias + keys.counts.clamp_min(1e-30).log()",
            "bias = bias + 0 * keys.counts",
        ),
        ("top-k among masked keys", "scores.detach().masked_fill(~among, -math.inf)", "scores.detach()"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/kth_largest.py",
        _TOPK,
        ("the next to the k-th largest", "place = width - k\n", "place = max(width - k - 1, 0)\n"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/topk_oow.py",
        _TOPK,
        ("the smaller half out of the window", "self.rest = k - k // 2", "self.rest = max(k // 2, 1)"),
        ("neighbours that take places out of the window", "visible & ~near, self.rest", "visible, self.rest"),
    ),
    # Patterns and fixed heads.
    *mutants_of(
        "sparsenmt/sparsity/window.py",
        _PATTERNS,
        ("a window that is one key narrower", "(back <= self.reach[0])", "(back < self.reach[0])"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/patterns.py",
        _PATTERNS,
        ("an even window with one more key on the right", "(k // 2, (k - 1) // 2)", "((k - 1) // 2, k // 2)"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/dilated.py",
        _PATTERNS,
        ("gaps inside the reach of a window", "self.reach = (rate * left, rate * right)", "self.reach = (left, right)"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/block.py",
        _PATTERNS,
        (
            "blocks that begin one position early for queries",
            "(once(queries) // self.segment)",
            "((once(queries) + 1) // self.segment)",
        ),
    ),
    *mutants_of(
        "sparsenmt/sparsity/global_pattern.py",
        _PATTERNS,
        ("one global position more", "(once(positions) < self.k)", "(once(positions) <= self.k)"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/random_pattern.py",
        _PATTERNS,
        ("one random key less", "kth_largest(hidden, width - k + 1)", "kth_largest(hidden, min(width - k + 2, width))"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/bigbird.py",
        _PATTERNS,
        ("a wider window of BigBird", "WindowPattern(k - 2 * self.quarter", "WindowPattern(k - self.quarter"),
        ("random keys of BigBird among those that are seen", "visible & ~fixed, self.quarter", "visible, self.quarter"),
    ),
    *mutants_of(
        "sparsenmt/sparsity/fixed_heads.py",
        _FIXED,
        ("previous and next exchanged", '"previous": 1, "next": -1', '"previous": -1, "next": 1'),
        ("left that sees the previous token", "_moved(rising.cumsum(1), 2)", "_moved(rising.cumsum(1), 1)"),
        (
            "squares for cubes",
            "rising, falling = number.pow(3) * seen, (length + 1 - number).pow(3) * seen",
            "rising, falling = number.pow(2) * seen, (length + 1 - number).pow(2) * seen",
        ),
        ("start and end exchanged", '{"end": rising, "start": falling}', '{"end": falling, "start": rising}'),
        (
            "the length with padding",
            "length = (number * seen).amax(1, keepdim=True)",
            "length = number.amax(1, keepdim=True)",
        ),
        (
            "right that sees the next token, of the formula in reports",
            "falling * (j >= i + 2)",
            "falling * (j >= i + 1)",
        ),
        (
            "words whose tokens do not share their weight",
            "share = share / tokens.gather(1, words).clamp_min(1)",
            "share = share * 1",
        ),
        (
            "fixed heads over tokens where words are meant",
            "queries, places = words.gather(1, queries), words.gather(1, places)",
            "queries, places = queries, places",
        ),
    ),
    *mutants_of(
        "sparsenmt/sparsity/fixed_maps.py",
        _FIXED,
        ("a running sum that forgets earlier blocks", "total if before is None else before + total", "total"),
    ),
    # The model and its depth.
    *mutants_of(
        "sparsenmt/model/stacks.py",
        ("tests/sparsity/test_depth_methods.py", "tests/training/test_exits.py"),
        (
            "exits without the last normalisation",
            "                result[t + 1] = self.norm(x)\n        return result\n",
            "                result[t + 1] = self.norm(x) if t + 1 == max(exits) else x\n        return result\n",
        ),
        (
            "the first block at every step",
            "block = self.layers[self.plan[t]]\n        assert isinstance(block, TransformerBlock)\n        keys",
            "block = self.layers[0]\n        assert isinstance(block, TransformerBlock)\n        keys",
        ),
    ),
    *mutants_of(
        "sparsenmt/model/embeddings.py",
        "tests/model/test_embeddings.py",
        ("embeddings that are not scaled", " * math.sqrt(vectors.shape[2])", " * 1.0"),
        ("positions from 1", "return table[start:end]", "return table[start + 1 : end + 1]"),
    ),
    *mutants_of(
        "sparsenmt/model/bands.py",
        "tests/model/test_bands.py",
        (
            "a first key that stands in the band, too",
            "device=keys.valid.device) >= first",
            "device=keys.valid.device) >= first - 1",
        ),
        (
            "first keys of another row",
            "x[:, None, :first].expand(-1, len(part) // len(x), -1).flatten(0, 1)",
            "x[:, :first].repeat(len(part) // len(x), 1)",
        ),
    ),
    *mutants_of(
        "sparsenmt/model/attend.py",
        "tests/model/test_bands.py",
        (
            "queries at the first positions that see their bands alone",
            "if not layout.symmetric:",
            "if layout.first >= 0:",
        ),
    ),
    *mutants_of(
        "sparsenmt/model/kv_cache.py",
        "tests/model/test_caches.py",
        ("first positions of another hypothesis", "self.first.index_select(1, rows)", "self.first[:, rows * 0]"),
    ),
    *mutants_of(
        "sparsenmt/model/attend.py",
        "tests/model/test_attend.py",
        (
            "scores of bf16 inputs that are rounded to bf16",
            "at_least_single(q).flatten(0, 1), at_least_single(k).flatten(0, 1)",
            "q.flatten(0, 1), k.flatten(0, 1)",
        ),
        (
            "scores that are divided by the size of a head, not by its root",
            "alpha=q.shape[-1] ** -0.5",
            "alpha=q.shape[-1] ** -1.0",
        ),
    ),
)
