"""Several processes that train one federation, and what each machine offers."""
