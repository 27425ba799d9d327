"""A FlashInfer without the CuTe DSL, whose import takes half of its time, for processes that need no such kernel."""

import sys

sys.modules["cutlass"] = None
