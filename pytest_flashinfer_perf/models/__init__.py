"""Models described by their config.json: layers, parameters, and the kernels of a step on one GPU."""
