"""Messages declared as data, codecs compiled from them, framing."""
