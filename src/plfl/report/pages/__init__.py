"""The pages: of a run, a study, an adaptation, a benchmark, and of a federation that runs."""
