"""The version, as pyproject.toml has it: asking importlib.metadata would double the start-up time."""

__version__ = "0.1.0"
