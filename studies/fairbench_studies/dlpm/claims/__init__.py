"""The DLPM paper's claims, each with a function that judges it from a figure's runs."""
