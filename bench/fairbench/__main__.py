"""The entry point of ``python -m fairbench``, which runs the command ``fairbench``."""

from fairbench.cli.main import main

main()
