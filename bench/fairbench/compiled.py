"""What the optional compiled wheel has to know of a class (``hatch_build.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_: Any) -> Any:
        """Only the compiler reads it; in the interpreter the class stays as it is."""
        return lambda cls: cls
