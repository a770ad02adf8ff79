"""A table and a picture that compare all measured runs with their simulations."""
