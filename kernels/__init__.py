"""GPU kernels: one file is one operation, its torch reference being the definition."""
