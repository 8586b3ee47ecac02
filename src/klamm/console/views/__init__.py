"""What pages and the JSON API show, as plain values made from a picture. Without IO."""
