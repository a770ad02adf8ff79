"""The package's version, which ``pyproject.toml`` reads, and the package's directory."""

from pathlib import Path

__version__ = "0.1.0"

DIRECTORY = Path(__file__).parent
