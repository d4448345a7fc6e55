"""execute: starts a job from a JobRequest, watches it by its JobHandle, and ends it."""
