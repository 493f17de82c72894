"""What this machine is: one file for each probe, none of which knows another."""
