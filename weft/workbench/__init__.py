"""What is done with kernels beside calling them: checked, measured, looked at. ``weft`` on the
command line (``weft_cli``) calls these functions."""
