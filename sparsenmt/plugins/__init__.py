"""Plugins: where they are named, what they register, what of them is recorded, and what is said when one fails."""
