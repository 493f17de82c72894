"""An agent played against any control plane: does it keep the rules, one by one?

The numbers are those of docs/protocol.md: a name for its first two parts, then the
numbered rules of the session. It runs nothing on any node, and registers as its own.
"""
