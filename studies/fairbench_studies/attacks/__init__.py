"""Studies of known attacks under many schedulers, and of the search that finds attacks."""
