"""Sources driven by hand, for engines that are not ours."""
