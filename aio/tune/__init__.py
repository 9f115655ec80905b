"""ds_nvme_tune: the options of aio_handle that suit a drive best."""
