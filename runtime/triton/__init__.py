"""A release as an entry of a Triton model repository."""
