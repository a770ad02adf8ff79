"""The gateway's queue in front of the cluster: it orders requests and releases them."""
