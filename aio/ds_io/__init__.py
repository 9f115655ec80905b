"""The command ds_io: how fast tensors move between memory and the files of a directory."""
