"""How it learns together: partition, client and server optimizers, the round, and what carries it."""
