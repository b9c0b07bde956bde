"""Serving over HTTP in the KServe v2 protocol (Open Inference Protocol), with Triton's extensions."""
