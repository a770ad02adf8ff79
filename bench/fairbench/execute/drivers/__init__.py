"""Several processes that send the load of one live run, here or on other machines."""
