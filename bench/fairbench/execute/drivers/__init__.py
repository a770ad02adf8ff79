"""Several processes that send the load of a live run, on this or on other machines."""
