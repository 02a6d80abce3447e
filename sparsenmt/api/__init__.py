"""A trained model in a Python program or a notebook, and the results of its use."""
