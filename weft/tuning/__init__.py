"""Measuring what is the fastest: configs of a kernel, schedules of its loops."""
