"""Copies among photographs: found, weighed, grouped, and put aside if somebody asks."""
