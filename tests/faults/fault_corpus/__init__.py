"""Planted faults and healthy engines: what the gates must catch, and must let pass."""
