"""A command as it is typed: Ctrl-C reaches it."""

import sys

# A shell has what it starts with `&` ignore it, and whatever that starts inherits that.
LLMGW = ("env", "--default-signal=INT", sys.executable, "-m", "llmgw")
