"""How it learns together: partition, optimizers of clients and server, the round, its carriers."""
