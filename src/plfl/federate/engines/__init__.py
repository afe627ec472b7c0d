"""Carriers of the round: one client at a time, all at once, a part at a time, many runs at once."""
