"""Runs of many nights, in a branch to which they are published, as a site and as alarms."""
