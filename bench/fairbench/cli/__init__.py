"""The command line, with one module per command; only this package prints."""
