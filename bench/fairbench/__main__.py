"""``python -m fairbench``: the command without its console script."""

from fairbench.cli.main import main

main()
