"""Cursors: how a consumer reads the log. Five kinds, one log; none of them changes it (I3)."""
