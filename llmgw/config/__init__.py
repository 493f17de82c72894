"""The file format: every key, its type, default, limits and description."""
