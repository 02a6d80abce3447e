"""Damage formulas and compiled kernels in many ways, one at a time: tests must fail for each.

``mutant``    a replacement, and the tests that must notice it
``formulas``  replacements in what the papers say of training and of the model
``results``   replacements in the search, metrics and reports
``kernels``   replacements in compiled kernels, their build and their checks
``trials``    a copy of the checkout, in which they are made, tested and undone
"""
