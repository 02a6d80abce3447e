"""Scores to sparse weights that sum to 1: softmax, 1.5-entmax, sparsemax and all alpha-entmax between them.

``function``  what transforms call, with exact gradients
``newton``    rows of scores in PyTorch, on any device, in fp32 and float64
``blockwise`` attention on a GPU without a matrix of scores, where Triton is installed
``transform`` the transform that chooses
"""
