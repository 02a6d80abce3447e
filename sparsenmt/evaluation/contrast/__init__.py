"""Contrastive evaluation: does a model find the correct translation more probable than wrong ones?"""
