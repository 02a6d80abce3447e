"""Contrastive evaluation: the share of items whose correct translation a model finds the most probable."""
