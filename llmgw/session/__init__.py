"""The node's side of the link to the control plane (docs/protocol.md)."""
