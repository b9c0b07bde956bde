"""A version with all that belongs to it in one file: written here, checked and taken in elsewhere."""
