"""A server that speaks SGLang's HTTP and whose engine is the simulator's, on the wall clock."""
