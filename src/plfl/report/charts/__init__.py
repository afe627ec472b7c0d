"""Charts as inline SVG: no script, no other file, the same on a phone and on a desk."""
