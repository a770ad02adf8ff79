"""A search for keys of a summary that the documents do not explain."""

import re
from collections.abc import Iterable


def undocumented(keys: Iterable[str], docs: str) -> list[str]:
    """Return the keys that no document names."""
    return sorted({*keys} - set(re.findall(r"`([a-z0-9_]+)`", docs)))
