"""Limits of the engines, on which the plan's estimates of memory and time depend; imports no torch."""

from __future__ import annotations

EMBEDDED_SEQUENCES = 512  # sequences that the embedded engine decodes at once, at most
VLLM_SEQUENCES = 1024  # sequences that vLLM decodes at once, at most, if its cache has room for them
VLLM_CPU_CACHE_GIB = 1.0  # vLLM's keys and values on a CPU, if hardware.cache_gib is not set
VLLM_GPU_SHARE = 0.5  # share of a GPU's memory for vLLM's weights and cache, if hardware.cache_gib is not set
