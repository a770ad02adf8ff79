"""Several processes that send the load of a live run, here or on other machines."""
