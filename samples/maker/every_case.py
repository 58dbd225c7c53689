"""Imports every module that registers samples."""
from . import broken_cases, cuda_cases, dcp_cases, framework_cases, large_cases, rank_cases, safetensors_cases, torch_cases, unsupported_cases, version_cases  # noqa: F401
from .registry import CASES  # noqa: F401
