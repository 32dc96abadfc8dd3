"""What happens at run time: signatures of values, launching, the disk cache."""
