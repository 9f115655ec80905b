"""What ds_io, ds_nvme_tune and the benchmarks measure with: turns, fio, files, machine."""
