"""The round over a real network: `files` on each machine, the `protocol` that server and clients
speak, `flower` that carries it, and the `programs` that people start.
"""
