"""Find the kernel modules that cases need, and compile all of them in parallel before anything is timed."""
