"""The Python interface; ``fairbench`` itself has all of it."""
