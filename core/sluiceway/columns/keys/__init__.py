"""Keys of rows: dense numbers for them, their key groups, and the tables and orders behind both."""
