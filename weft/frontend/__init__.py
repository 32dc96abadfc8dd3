"""Python source to IR: split into host part and device loops, infer types, lower, refuse."""
