"""Quantisers in plain torch, on any device: values and scales as FlashInfer's kernels take them, and what they mean.

`grids` are the numbers that narrow types have, `blocks` scale tensors into them, `layouts` order scales and rows.
"""
