"""execute: JobRequest → JobHandle → Outcome."""
