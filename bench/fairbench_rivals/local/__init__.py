"""Local schedulers of other papers and engines."""
