"""Control of one job: job master, checkpoint coordinator, source coordinators, failover."""
