"""Several processes of one machine as one engine: control messages, workers, and the way jobs get to them."""
