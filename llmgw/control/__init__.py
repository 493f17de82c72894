"""The reference control plane: it accepts agents, and tells them what is wanted."""
