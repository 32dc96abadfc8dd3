"""What PyTorch is told of a kernel."""
