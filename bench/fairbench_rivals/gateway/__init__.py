"""Queue policies of production gateways."""
