"""The immutable metadata image and the controller."""
