"""Start processes that measure, and compare what two of them measured in turns."""
