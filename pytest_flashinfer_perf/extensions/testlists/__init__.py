"""FlashInfer's own benchmark script: its command lines, its CSV and the lines that it prints."""
