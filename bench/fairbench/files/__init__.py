"""Files that users name: read here and nowhere else, since anything may be in them."""
