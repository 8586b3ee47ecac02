"""The client: producers, consumers and admins on cores without IO. `klamm.aio` and `klamm` name its faces."""
