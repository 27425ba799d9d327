"""What a call costs the host: the time to enqueue and to plan it, and where it waits for the GPU."""
