"""Backups as files: how they lie in a folder or in object storage, how they are sent and fetched.

This floor knows files, pieces and manifests; it knows no stream and no engine. What is to be in a
backup is decided above (`log/freezing.py`), and what becomes of fetched files, too.
"""
