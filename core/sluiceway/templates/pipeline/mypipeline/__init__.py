"""Page views, counted."""
