"""The daemon: composes what the node is, what is wanted and what runs."""
