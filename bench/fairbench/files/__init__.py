"""Readers of users' files, which are untrusted. Only ``fairbench.files`` opens users' files."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.files.formats import dumps as dumps

__getattr__ = lazy_names(__name__, {"formats": "dumps"})
