"""Cluster of processes: job manager, dispatcher, workers, clients, and the control messages between them."""
