"""Which commit or release changed a case: the search, what it searches in, and what it asks at each step."""
