"""The main job on one machine, told step by step."""
