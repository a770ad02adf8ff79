"""The version of the package (pyproject.toml reads this file), and the package's directory."""

from pathlib import Path

__version__ = "0.1.0"

DIRECTORY = Path(__file__).parent
