"""Search for shapes with a wrong answer or a crash, instead of timing."""
