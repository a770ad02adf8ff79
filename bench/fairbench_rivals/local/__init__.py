"""Local schedulers from other papers and engines."""
