"""The command line: a thin file a command. Only here is anything printed."""
