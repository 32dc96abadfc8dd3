"""weft beside its peers: ``make bench``, or ``python -m benchmarks [--quick] [subject ...]``."""
