"""Plugins: fairbench's schedulers inside other servers, and the parts that plugins share."""
