"""`python -m benchmarks --dir DIR`: `aio` measured against fio, DeepSpeed and plain Python."""
