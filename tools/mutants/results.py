"""Mutants of the formulas of results: the search, metrics, reports, the depth selector."""

from __future__ import annotations

from tools.mutants.mutant import mutants_of

RESULTS = (
    # The search.
    *mutants_of(
        "sparsenmt/decoding/scores.py",
        ("tests/decoding/test_scores.py", "tests/decoding/test_beam.py"),
        ("the length penalty over 5", "base = (5.0 + lengths) / 6.0", "base = (5.0 + lengths) / 5.0"),
        ("the length penalty times alpha", "penalty: Lengths = base**alpha", "penalty: Lengths = base * alpha"),
        (
            "a length without the end of the sentence",
            "length_penalty(prefix + len(tokens), options)",
            "length_penalty(prefix + len(tokens) - ended, options)",
        ),
        (
            "an n-gram that may come twice",
            "same = (windows[:, :, : n - 1] == suffix[:, None, :]).all(-1)",
            "same = (windows[:, :, : n - 1] != suffix[:, None, :]).all(-1)",
        ),
    ),
    *mutants_of(
        "sparsenmt/decoding/beam.py",
        "tests/decoding/test_beam.py",
        (
            "a search that stops at the first end",
            "state.ended_count >= self.options.beam_size",
            "state.ended_count >= 1",
        ),
        ("hypotheses that end outside of the best k", "ended_count + ends.sum(1)", "ended_count + stops.sum(1)"),
        (
            "ended hypotheses by log-probability",
            "ranks = (best[:, :k] / self._penalties())",
            "ranks = (best[:, :k] / 1)",
        ),
    ),
    # Metrics.
    *mutants_of(
        "sparsenmt/evaluation/significance.py",
        "tests/evaluation/test_significance.py",
        (
            "absolute differences that are centred",
            "np.abs(differences - differences.mean()) >=",
            "np.abs(differences) - np.abs(differences).mean() >=",
        ),
        ("differences that are not centred", "np.abs(differences - differences.mean()) >=", "np.abs(differences) >="),
        ("the bootstrap of few segments", "if few else _share(extreme)", "if False else _share(extreme)"),
        ("a p-value of one segment", "    if rows < 2:", "    if rows < 1:"),
        ("exchanges without their opposites", "np.arange(2 ** (rows - 1))", "np.arange(2 ** (rows - 1) - 1)"),
        ("seeds with n in the place of n - 1", "float(np.std(differences, ddof=1))", "float(np.std(differences))"),
        ("a one-sided bootstrap", "np.abs(differences - differences.mean()) >=", "differences - differences.mean() >="),
        (
            "a one-sided randomization",
            "exchanged = np.abs(_exchanged_differences(pair, _coins(test, rows)))",
            "exchanged = _exchanged_differences(pair, _coins(test, rows))",
        ),
        (
            "a p-value without the observed sample",
            "(int(np.count_nonzero(extreme)) + 1) / (len(extreme) + 1)",
            "int(np.count_nonzero(extreme)) / len(extreme)",
        ),
        (
            "rows that are given to one system and not taken from the other",
            "baseline.score(theirs - each)",
            "baseline.score(theirs)",
        ),
        ("an interval over seeds by the variance of a population", "np.var(values, ddof=1)", "np.var(values)"),
    ),
    *mutants_of(
        "sparsenmt/evaluation/metrics.py",
        "tests/evaluation/test_document_bleu.py",
        ("documents whose lines are joined without a space", '" ".join(line', '"".join(line'),
    ),
    *mutants_of(
        "sparsenmt/evaluation/sacrebleu_scorer.py",
        "tests/evaluation/test_metrics.py",
        ("the brevity penalty for the length ratio", "float(100 * result.ratio)", "float(100 * result.bp)"),
        ("chrF without regard to case", "CHRF(lowercase=settings.lowercase)", "CHRF(lowercase=True)"),
    ),
    *mutants_of(
        "sparsenmt/evaluation/rouge.py",
        "tests/evaluation/test_metrics.py",
        ("recall for F1", "best[name].fmeasure", "best[name].recall"),
    ),
    *mutants_of(
        "sparsenmt/evaluation/contrast/decisions.py",
        "tests/evaluation/contrast/test_decisions.py",
        ("ties that are right", "return self.correct > self.contrastive", "return self.correct >= self.contrastive"),
        ("the worst contrastive score", "max(map(score, scored.contrastive))", "min(map(score, scored.contrastive))"),
    ),
    *mutants_of(
        "sparsenmt/evaluation/depth_oracle.py",
        "tests/depth_selector/test_labels.py",
        (
            "an oracle that takes the slowest of the best",
            "first: NDArray[np.int64] = scores.argmax(axis=1)",
            "first: NDArray[np.int64] = scores.shape[1] - 1 - scores[:, ::-1].argmax(axis=1)",
        ),
    ),
    # Reports.
    *mutants_of(
        "sparsenmt/analysis/gates.py",
        ("tests/analysis/test_gates.py", "tests/analysis/test_pos_rates.py"),
        ("half-open gates that count as dropped", "self.gates == 0", "self.gates < 0.5"),
    ),
    *mutants_of(
        "sparsenmt/decoding/translate.py",
        ("tests/analysis/test_gates.py", "tests/analysis/test_pos_rates.py"),
        ("rates over padding", "gates[row, : len(line.ids)]", "gates[row]"),
    ),
    *mutants_of(
        "sparsenmt/analysis/filter_rates.py",
        "tests/analysis/test_filter_rates.py",
        (
            "open gates told as partial ones",
            "(positions - closed - partial) / positions",
            "(positions - closed) / positions",
        ),
    ),
    *mutants_of(
        "sparsenmt/model/protocol.py",
        ("tests/analysis/test_filter_rates.py", "tests/model/test_gate_shares.py"),
        ("padding that counts as closed", "return self.source & (self.evaluated == 0)", "return self.evaluated == 0"),
    ),
    *mutants_of(
        "sparsenmt/analysis/pos_rates.py",
        "tests/analysis/test_pos_rates.py",
        (
            "first and later tokens of words exchanged",
            "LATER if alignment.later[i] else HEAD",
            "HEAD if alignment.later[i] else LATER",
        ),
        ("the end of a sentence among the rest", "labels.append((END, None))", 'labels.append(("rest", None))'),
    ),
    *mutants_of(
        "sparsenmt/data/tagging/tagsets.py",
        "tests/data/tagging/test_tagsets.py",
        (
            "modals that are function words",
            'return _REPORT.get(category, "rest")',
            'return "function" if category is WordCategory.MODAL else _REPORT.get(category, "rest")',
        ),
    ),
    *mutants_of(
        "sparsenmt/analysis/diversity.py",
        "tests/analysis/test_diversity.py",
        ("a divergence in nats", "(whole - own) / keys.clamp_min(2).double().log()", "(whole - own)"),
        (
            "a divergence without the heads' own entropy",
            "own = _entropy(p).sum(1) / heads",
            "own = 0 * _entropy(p).sum(1) / heads",
        ),
    ),
    *mutants_of(
        "sparsenmt/analysis/entropy.py",
        "tests/analysis/test_entropy.py",
        (
            "an entropy in bits",
            "last = -torch.special.xlogy(mean, mean).sum(-1)",
            "last = -torch.special.xlogy(mean, mean).sum(-1) / 0.6931",
        ),
        (
            "entropies averaged after the heads",
            "mean = seen.shares.mean(1).double()",
            "mean = seen.shares[:, 0].double()",
        ),
    ),
    *mutants_of(
        "sparsenmt/analysis/density.py",
        "tests/analysis/test_density.py",
        (
            "a density of all queries together",
            "return shares / seeing.sum(-1),",
            "return attended.sum(-1).double() / visible.sum(-1),",
        ),
        ("a density that counts weights that no normal number holds", "seen.weights >= LEAST", "seen.weights != 0"),
        ("dropped positions that count as attended", "if seen.kept is not None:", "if False:"),
        ("queries that are padding", "seeing = seen.real[:, None] & (visible > 0)", "seeing = visible > 0"),
    ),
    *mutants_of(
        "sparsenmt/analysis/attention_mass.py",
        "tests/analysis/test_attention_mass.py",
        (
            "the mass of one head",
            "layers.append(seen.weights.mean(1).double())",
            "layers.append(seen.weights[:, 0].double())",
        ),
        (
            "mass on closed positions that counts as words'",
            "weights=mass * (~dropped & columns)",
            "weights=mass * columns",
        ),
    ),
    *mutants_of(
        "sparsenmt/analysis/last_token.py",
        "tests/analysis/test_last_token.py",
        (
            "the mass on the last token but one",
            "len(each.line.frame.prefix) + each.line.kept for each",
            "max(each.line.kept - 1, 0) for each",
        ),
    ),
    *mutants_of(
        "sparsenmt/analysis/head_roles.py",
        "tests/analysis/test_head_roles.py",
        (
            "a role over padding",
            "return (diagonal * both[:, None]).sum((0, 2)), int(both.sum())",
            "return diagonal.sum((0, 2)), both.numel()",
        ),
    ),
    # The depth selector.
    *mutants_of(
        "sparsenmt/depth_selector/training.py",
        "tests/depth_selector/test_loss.py",
        ("the prior for its complement", "-((1 - prior) ** alpha * labels", "-(prior**alpha * labels"),
    ),
)
