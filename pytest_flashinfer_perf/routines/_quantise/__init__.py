"""Quantisers in plain torch, on any device: values and scales in the formats of FlashInfer's kernels, and back.

`grids` are the numbers that narrow types have, `blocks` scale tensors into them, `layouts` order scales and rows.
"""
