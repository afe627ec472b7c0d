"""The same round over a real network. Flower's words stay in here."""
