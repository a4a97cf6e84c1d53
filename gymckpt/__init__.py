"""Checkpoint and restore agentic RL rollouts as explicit, persisted state machines."""
