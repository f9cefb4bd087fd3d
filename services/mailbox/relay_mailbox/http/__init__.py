"""The HTTP side: parse, operate, render."""
