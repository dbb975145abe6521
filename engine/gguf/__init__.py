"""GGUF files: models as llama.cpp stores them, in one file.

Does not import torch.
"""
