"""A model by its config.json, the kernels that one GPU of its deployment runs in a step, and the time of that step."""
