"""The command line: one thin file per command. Only this package prints."""
