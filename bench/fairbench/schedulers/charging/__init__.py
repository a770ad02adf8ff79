"""Charging: the amount by which each event of an engine or a router changes a client's account."""
