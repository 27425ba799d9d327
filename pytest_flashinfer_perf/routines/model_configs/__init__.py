"""Models as their config.json describes them: layers, parameters, and the kernels of a step on one GPU."""
