"""Kernel modules compiled before anything is timed: which ones cases need, and all of them at once."""
