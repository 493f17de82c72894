"""Model files: where they lie, and every byte of them fetched once."""
