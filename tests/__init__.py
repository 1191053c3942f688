"""Tests of eyeline."""
