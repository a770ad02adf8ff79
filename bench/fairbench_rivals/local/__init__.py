"""Local schedulers of other papers."""
