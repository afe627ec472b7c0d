"""What a person looks at: the page of a run, made from its stored files."""
