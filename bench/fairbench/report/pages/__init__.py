"""Reports as HTML or Markdown pages: of a run, its repeats, or a sweep."""
