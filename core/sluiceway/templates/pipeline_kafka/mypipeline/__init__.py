"""Page views per page and minute, from Apache Kafka to Apache Kafka."""
