"""What people test their pipelines, operators and plugins with."""
