"""Sends the programs of an experiment to real servers, and writes down what came back."""
