"""The orders in which a gateway can sort the requests of one flow; each has its own file."""
