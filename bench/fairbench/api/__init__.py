"""The Python interface, which the package ``fairbench`` exports."""
