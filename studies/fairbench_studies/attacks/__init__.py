"""Known attacks under many schedulers, and whether a search finds them again."""
