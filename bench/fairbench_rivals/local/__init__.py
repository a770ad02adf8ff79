"""Local schedulers that come from other papers and engines."""
