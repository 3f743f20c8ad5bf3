"""What runs in processes of their own: the entry points of workers and job managers."""
