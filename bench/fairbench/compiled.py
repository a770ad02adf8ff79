"""Class decorators for the optional compiled wheel (``hatch_build.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_: Any) -> Any:
        """Return a decorator that does nothing unless mypyc compiles the class."""
        return lambda cls: cls
