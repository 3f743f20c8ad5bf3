"""Drawings of a plan: text, JSON, Mermaid, HTML."""
