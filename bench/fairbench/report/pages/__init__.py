"""Reports as pages: of a run, of its repeats, of a sweep; as HTML and as Markdown."""
