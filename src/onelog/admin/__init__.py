"""The admin listener: health, metrics, and the API by which operators see and change the broker."""
