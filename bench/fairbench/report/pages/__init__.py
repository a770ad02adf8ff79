"""HTML and Markdown pages that report a run, repeats of a run, or a sweep."""
