"""``python -m fairbench``: the command where its script is not on the path."""

from fairbench.cli.main import main

main()
