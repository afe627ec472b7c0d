"""NREL's ComStock: reading its files, and fetching them."""
