"""The protocol over Flower's SuperLink and SuperNodes."""
