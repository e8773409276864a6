"""The ground floor: errors, ids, limits, clock and fault points. It imports nothing of ours."""
