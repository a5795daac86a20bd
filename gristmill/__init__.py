"""Gristmill on a serving host: verified kernels pulled, swapped and counted while the engine serves.

Importing this package loads no torch, boto3 or tuf; the modules that need them say so.
"""

__version__ = "0.1.0"
