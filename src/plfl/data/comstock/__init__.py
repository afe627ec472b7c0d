"""NREL's ComStock: reading its files, fetching them, and the twelve buildings that are bundled."""
