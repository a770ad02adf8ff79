"""The version of the package, which ``pyproject.toml`` reads here, and its directory."""

from pathlib import Path

__version__ = "0.1.0"

DIRECTORY = Path(__file__).parent
