"""llmgw: one small agent per machine turns bare metal into one LLM serving fleet."""
