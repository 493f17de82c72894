"""Keeps processes running; knows no models."""
