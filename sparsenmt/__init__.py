"""Neural machine translation with sparse attention: a Transformer with sparsity methods plugged into its sockets."""

__version__ = "0.1.0"
